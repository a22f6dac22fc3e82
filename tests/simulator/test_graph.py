"""Capture and replay on the simulated NPU: what a replay does again, and what no capture may do."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from vllm_megamoe.simulator.graph import NPUGraph, as_one_kernel, graph, is_capturing

W = torch.arange(12.0).view(3, 4)
X = torch.arange(6.0).view(2, 3)


def captured(step: Callable[[], Tensor]) -> tuple[NPUGraph, Tensor]:
    made = NPUGraph()
    with graph(made, pool=(0, 1)):
        assert is_capturing()
        result = step()
    assert not is_capturing()
    return made, result


def test_a_replay_reads_what_its_buffers_hold_now() -> None:
    x, count = X.clone(), torch.zeros(4)

    def step() -> Tensor:
        rows = torch.cat([x, x[:1] * 2])
        y = (rows @ W).relu()
        y[1] -= 1
        count.add_(y.sum(0))
        return y.t().contiguous().t()

    made, y = captured(step)
    place = y.data_ptr()
    count.zero_()
    for factor in (3.0, -2.0, 0.5):
        x.copy_(X * factor)
        made.replay()
        expected = (torch.cat([x, x[:1] * 2]) @ W).relu()
        expected[1] -= 1
        assert torch.equal(y, expected)
        assert y.data_ptr() == place
    total = sum((torch.cat([X * f, X[:1] * f * 2]) @ W).relu().sum(0) - 1 for f in (3.0, -2.0, 0.5))
    assert torch.equal(count, torch.as_tensor(total))


def test_no_python_runs_in_a_replay() -> None:
    seen = []

    def step() -> Tensor:
        seen.append(1)
        return X * 2

    made, _ = captured(step)
    made.replay()
    made.replay()
    assert seen == [1]


def test_one_kernel_is_one_operation() -> None:
    """What is Python here and a kernel on the device may read what it likes, and runs again in a replay."""
    x, seen = X.clone(), []

    def kernel(rows: Tensor) -> tuple[Tensor, Tensor]:
        seen.append(float(rows.sum()))
        return rows + 1, torch.tensor([rows.max().item()])

    made, y = captured(lambda: torch.mul(*as_one_kernel(kernel, x)))
    x.mul_(10)
    made.replay()
    assert seen == [15.0, 150.0]
    assert torch.equal(y, (x + 1) * 50)


@pytest.mark.parametrize(
    "read",
    [
        lambda: X.sum().item(),
        lambda: bool(X.sum() > 0),
        lambda: X.tolist(),
        lambda: X.cpu(),
        lambda: X.to("cpu"),
        lambda: X.numpy(),
        lambda: X.nonzero(),
        lambda: X[X > 2],
        lambda: torch.tensor([1.0]),
        lambda: torch.equal(X, X),
    ],
)
def test_what_waits_for_the_device_is_an_error(read: Callable[[], object]) -> None:
    with pytest.raises(RuntimeError, match="while a graph is captured"), graph(NPUGraph()):
        read()
    assert not is_capturing()


def test_memory_of_the_graph_that_somebody_holds_is_named() -> None:
    held: list[Tensor] = []

    def step() -> Tensor:
        held.append(X * 3)
        return held[0] + 1

    made, y = captured(step)
    assert {id(tensor) for tensor in made.kept} == {id(y), id(held[0])}
    held.clear()
    assert [tensor is y for tensor in made.kept] == [True]


def test_there_is_one_capture_at_a_time() -> None:
    with graph(NPUGraph()), pytest.raises(RuntimeError, match="a capture is open already"), graph(NPUGraph()):
        pass
