"""A layer in a graph of vllm-ascend's own ACLGraphWrapper: captured once, replayed with other rows, beside eager."""

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import torch
from contract.scenes.layer import build
from contract.support import engine
from contract.support.cases import CASES, HIDDEN, Case
from contract.support.values import rows_for

from vllm_megamoe.layer.buffers import close_buffers, open_handle
from vllm_megamoe.layer.state import LayerState

if TYPE_CHECKING:
    from contract.support.rank import Rank

TOKENS = 16
REAL = (16, 11, 3, 16)
"""Real tokens of the steps; the graph is captured for 16, and the mask says which are real."""
NAMES = ("bf16", "shared", "fused", "pieces", "w8a8", "w4a8", "mxfp8", "w4a8 mxfp", "mxfp4")


def run(rank: "Rank") -> dict[str, Any]:
    """Of each case: rows and counters of eager steps and of replays, and what is held of the graph's memory."""
    cases = {case.name: case for case in CASES[os.environ["VLLM_MEGAMOE_SIMULATED_NPU"]]}
    answers: dict[str, Any] = {name: _beside(cases[name], rank) for name in NAMES if name in cases}
    config, block = build(cases["bf16"], rank)
    with _keeps():
        steps = _Steps(config, block)
        steps.replayed("wrong", TOKENS)
        kept = [list(tensor.shape) for tensor in steps.kept()]
    wrong = {name: _said(config, block, change) for name, change in WRONG.items()}
    return {"cases": answers, "wrong": wrong, "kept": kept, "report": _report(block.experts.routed_experts.mega_moe)}


def _beside(case: Case, rank: "Rank") -> dict[str, Any]:
    from vllm_megamoe.lanes import warm_up

    config, block = build(case, rank)
    state = block.experts.routed_experts.mega_moe
    steps = _Steps(config, block)
    eager = [steps.eager(case.name, n) for n in REAL]
    counted = _counters(state)
    _reset(state)
    captured = steps.replayed(case.name, TOKENS)  # a capture runs the step once here, and never on a device
    _reset(state)
    replayed = [steps.replayed(case.name, n) for n in REAL]
    counters = _counters(state)
    # A dummy batch after warm-up: all its rows are real to vllm-ascend.
    with patch.object(warm_up, "_idle_batch", True):
        idle = steps.replayed(case.name, TOKENS)
    return {
        "eager": eager,
        "captured": captured,
        "replayed": replayed,
        "eager counters": counted,
        "replayed counters": counters,
        "idle": idle,
        "counters after idle": _counters(state),
        "graphs": len(steps.graph.concrete_aclgraph_entries),
        "kept": [list(tensor.shape) for tensor in steps.kept()],
    }


class _Steps:
    """Steps of a block over one buffer of rows, as vllm-ascend's model runner has one."""

    def __init__(self, config: Any, block: Any) -> None:
        from vllm.config import CUDAGraphMode
        from vllm_ascend.compilation.acl_graph import ACLGraphWrapper

        self.config, self.block = config, block
        self.x = torch.zeros(TOKENS, HIDDEN, dtype=torch.bfloat16)
        self.graph = ACLGraphWrapper(block, config, CUDAGraphMode.FULL)

    def eager(self, name: str, real: int) -> torch.Tensor:
        """Without a graph."""
        return self._run(self.block, name, real).clone()

    def replayed(self, name: str, real: int) -> torch.Tensor:
        """Through the graph; the first time captures it."""
        from vllm.config import CUDAGraphMode
        from vllm.forward_context import BatchDescriptor

        options = {"aclgraph_runtime_mode": CUDAGraphMode.FULL, "batch_descriptor": BatchDescriptor(TOKENS)}
        return self._run(self.graph, name, real, **options).clone()

    def kept(self) -> list[torch.Tensor]:
        """Tensors in the graph's memory that somebody holds, apart from the step's own result."""
        (entry,) = self.graph.concrete_aclgraph_entries.values()
        return [tensor for tensor in entry.aclgraph.kept if tensor is not entry.output]

    def _run(self, called: Callable[[torch.Tensor], torch.Tensor], name: str, real: int, **options: Any) -> Any:
        self.x[:real] = rows_for(f"{name} {real}", real, HIDDEN)
        return engine.forward(self.config, called, self.x, num_actual_tokens=real, **options)[:real]


def _reset(state: LayerState) -> None:
    state.load.counts.zero_()
    state.load.by_calls.zero_()


def _counters(state: LayerState) -> dict[str, Any]:
    return {"steps": state.steps, "calls": state.calls, "counts": state.counts.tolist()}


def _reads() -> Any:
    right = LayerState._call

    def reading(state: LayerState, x: Any, ids: Any, *others: Any) -> Any:
        return right(state, x, ids, *others) if bool((ids >= 0).any()) else x

    return patch.object(LayerState, "_call", reading)


def _asks_for_values() -> Any:
    right = LayerState._call

    def listing(state: LayerState, x: Any, ids: Any, *others: Any) -> Any:
        ids.tolist()
        return right(state, x, ids, *others)

    return patch.object(LayerState, "_call", listing)


def _sends_from_the_host() -> Any:
    right = LayerState._call

    def sending(state: LayerState, x: Any, ids: Any, weights: Any, *others: Any) -> Any:
        return right(state, x, ids, weights * torch.tensor(1.0), *others)

    return patch.object(LayerState, "_call", sending)


def _makes_a_buffer() -> Any:
    right = LayerState._call

    def making(state: LayerState, *given: Any) -> Any:
        close_buffers()
        open_handle(state.name, state.plan, state.seat)
        return right(state, *given)

    return patch.object(LayerState, "_call", making)


@contextmanager
def _keeps() -> Iterator[None]:
    """A call whose result stays with the layer, in memory that is the graph's."""
    right = LayerState._call
    held: list[Any] = []

    def keeping(state: LayerState, *given: Any) -> Any:
        held.append(right(state, *given))
        return held[-1]

    with patch.object(LayerState, "_call", keeping):
        yield


WRONG: dict[str, Callable[[], Any]] = {
    "reads": _reads,
    "asks for values": _asks_for_values,
    "sends from the host": _sends_from_the_host,
    "makes a buffer": _makes_a_buffer,
}


def _said(config: Any, block: Any, change: Callable[[], Any]) -> str:
    """What a capture says to a step that a device could not capture."""
    with change():
        try:
            _Steps(config, block).replayed("wrong", TOKENS)
        except Exception as error:  # that something is said is what this is about
            return f"{type(error).__name__}: {error}"
    return ""


def _report(state: LayerState) -> dict[str, Any]:
    """Whether the load report may ask the device: in the runner's captures, and after them."""
    from vllm.compilation import monitor

    from vllm_megamoe.lanes.moe_method import captures_are_over

    state.captured_at, answer = -math.inf, {}
    for name, enabled in (("in captures", True), ("after them", False)):
        with patch.object(monitor, "cudagraph_capturing_enabled", enabled):
            answer[name] = captures_are_over(state)
    return answer
