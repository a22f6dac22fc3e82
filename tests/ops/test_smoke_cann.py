"""The adapter to the CANN package, against a stand-in with the signatures of its release 9.1 (torch_api.txt)."""

import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from vllm_megamoe.errors import OperatorError
from vllm_megamoe.layout import AclFormat, format_cast
from vllm_megamoe.ops import SymmBuffer, backend, get_symm_buffer_for_mega_moe, mega_moe, settings
from vllm_megamoe.ops.cann.installed import installed

Calls = list[tuple[str, dict[str, Any]]]
FRACTAL_NZ = AclFormat.FRACTAL_NZ


class Buffer:
    """The package's SymmBuffer, as release 9.1 makes it: what the constructor was given, and what HCCL says."""

    def __init__(self, given: dict[str, Any]) -> None:
        for name, value in given.items():
            setattr(self, name, value)
        self.group_name, self.rank_id, self.context, self.ccl_buffer_size = "hccl", 3, torch.ones(2), 1
        self.destroyed = 0

    def destroy(self) -> None:
        self.destroyed += 1


class Group:
    """A process group that notes when its communicator is made."""

    group_name = "ep"

    def __init__(self, calls: Calls) -> None:
        self.calls = calls

    def rank(self) -> int:
        return 3

    def size(self) -> int:
        return 4

    def _get_backend(self, device: torch.device) -> "Group":
        assert device.type == "npu"
        return self

    def get_hccl_comm_name(self, rank: int) -> str:
        self.calls.append(("communicator", {"rank": rank}))
        return "name"


def release_9_1(calls: Calls) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Signatures of torch_api.txt."""

    def create(
        group: Any,
        num_experts: int,
        num_max_tokens_per_rank: int,
        num_topk: int,
        hidden: int,
        intermediate_hidden: int,
        *,
        max_recv_token_num: int = 0,
        dispatch_quant_mode: int = 0,
        dispatch_quant_out_dtype: Any = None,
        combine_quant_mode: int = 0,
        comm_alg: str = "",
    ) -> Buffer:
        given = dict(locals())
        del given["calls"]
        calls.append(("create", given))
        return Buffer(given)

    def run(
        x: Tensor,
        topk_ids: Tensor,
        topk_weights: Tensor,
        l1_weights: list[Tensor],
        l2_weights: list[Tensor],
        sym_buffer: Any,
        *,
        l1_weights_sf: Any = None,
        l2_weights_sf: Any = None,
        l1_bias: Any = None,
        l2_bias: Any = None,
        x_active_mask: Any = None,
        activation: str = "swiglu",
        activation_clamp: float | None = None,
        weight1_type: Any = None,
        weight2_type: Any = None,
    ) -> tuple[Tensor, Tensor]:
        calls.append(("run", locals()))
        return x, topk_ids

    return create, run


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[Calls]:
    """An installed release 9.1; what it was called with."""
    made: Calls = []
    # As torch_npu does at its import; the same name may be given twice. It stays for the life of the process, so torch
    # gets a module of that name too: torch.compile asks every device whether it is there.
    torch.utils.rename_privateuse1_backend("npu")
    if not hasattr(torch, "npu"):
        absent = ModuleType("torch.npu")
        absent.is_available = lambda: False  # type: ignore[attr-defined]
        torch._register_device_module("npu", absent)
    torch_npu = ModuleType("torch_npu")
    torch_npu.npu = ModuleType("torch_npu.npu")  # type: ignore[attr-defined]
    torch_npu.npu.is_available = lambda: True  # type: ignore[attr-defined]
    ops = ModuleType("cann_ops_transformer.ops")
    ops.get_symm_buffer_for_mega_moe, ops.mega_moe = release_9_1(made)  # type: ignore[attr-defined]
    for name, module in (("torch_npu", torch_npu), ("cann_ops_transformer.ops", ops)):
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda group: 3)
    monkeypatch.setattr(backend, "_missing_for_cann", lambda: "")
    backend.resolve.cache_clear()
    installed.cache_clear()
    yield made
    backend.resolve.cache_clear()
    installed.cache_clear()


def make_buffer(calls: Calls, **options: Any) -> Any:
    with settings(backend="cann"):
        return get_symm_buffer_for_mega_moe(Group(calls), 8, 16, 2, 64, 32, **options)  # type: ignore[arg-type]


def test_the_communicator_is_made_before_the_buffer(calls: Calls) -> None:
    buffer = make_buffer(calls, dispatch_quant_mode=2, dispatch_quant_out_dtype=torch.int8, topk_weights_type=0)
    assert [name for name, _ in calls] == ["communicator", "create"]
    assert calls[0][1] == {"rank": 3}
    assert calls[1][1]["dispatch_quant_out_dtype"] is torch.int8
    assert isinstance(buffer, SymmBuffer)


@pytest.mark.parametrize("name", ["topk_weights_type", "combine_comm_mode"])
def test_a_buffer_argument_of_a_later_revision_is_rejected(calls: Calls, name: str) -> None:
    with pytest.raises(OperatorError, match=rf"{name}=1; expected the default.*max_recv_token_num"):
        make_buffer(calls, **{name: 1})
    assert not calls


def test_a_call_passes_what_the_revision_takes(calls: Calls) -> None:
    x, ids = torch.zeros(3, 64), torch.zeros(3, 2, dtype=torch.int32)
    stack = torch.zeros(8, 64, 64)
    y, _ = mega_moe(x, ids, x, stack, [stack], make_buffer(calls), activation_clamp=7.0, weight1_type=285)
    passed = calls[-1][1]
    assert y is x
    assert passed["l1_weights"] == [stack]
    assert passed["l2_weights"] == [stack]
    assert (passed["activation_clamp"], passed["weight1_type"], passed["l1_bias"]) == (7.0, 285, None)


@pytest.mark.parametrize(
    ("name", "value"),
    [("activation_params", {"alpha": 1.7}), ("shared_l1_weights", [torch.zeros(2, 2)]), ("scales", torch.zeros(1))],
)
def test_a_call_argument_of_a_later_revision_is_rejected(calls: Calls, name: str, value: Any) -> None:
    x, ids = torch.zeros(3, 64), torch.zeros(3, 2, dtype=torch.int32)
    buffer = make_buffer(calls)
    with pytest.raises(OperatorError, match=rf"mega_moe: {name}=.*no such argument"):
        mega_moe(x, ids, x, [x], [x], buffer, **{name: value})
    assert [entry for entry, _ in calls] == ["communicator", "create"]


@pytest.mark.parametrize(("shared", "passes"), [(296, True), (291, False)])
def test_types_of_shared_weights_need_not_be_said_where_they_repeat(calls: Calls, shared: int, passes: bool) -> None:
    """Revisions without these arguments take the routed weights' type for both; another type cannot be said."""
    buffer, x, weights = make_buffer(calls), torch.zeros(1, 2), [torch.zeros(2, 2)]
    types = {"weight1_type": 296, "weight2_type": 296, "shared_weight1_type": shared, "shared_weight2_type": 296}
    if passes:
        mega_moe(x, x, x, weights, weights, buffer, **types)
        assert "shared_weight1_type" not in calls[-1][1]
        assert calls[-1][1]["weight1_type"] == 296
    else:
        with pytest.raises(OperatorError, match="shared_weight1_type=291"):
            mega_moe(x, x, x, weights, weights, buffer, **types)


def test_a_foreign_buffer_is_rejected() -> None:
    x = torch.zeros(3, 64)
    for foreign, kind in (("buffer", "str"), (Buffer({}), "Buffer"), (None, "NoneType")):
        with pytest.raises(OperatorError, match=f"sym_buffer is a {kind}; expected the SymmBuffer"):
            mega_moe(x, x, x, [x], [x], foreign)  # type: ignore[arg-type]


def run(buffer: SymmBuffer, **options: Any) -> None:
    x, ids = torch.zeros(3, 64), torch.zeros(3, 2, dtype=torch.int32)
    mega_moe(x, ids, x, [x], [x], buffer, **options)


def test_the_public_buffer_has_what_the_package_found_out(calls: Calls) -> None:
    buffer = make_buffer(calls, dispatch_quant_mode=2, dispatch_quant_out_dtype=torch.int8)
    run(buffer)
    own = calls[-1][1]["sym_buffer"]
    for name in ("group_name", "rank_id", "context", "ccl_buffer_size", "hidden", "num_topk", "dispatch_quant_mode"):
        assert getattr(buffer, name) is getattr(own, name), name
    assert (buffer.ep_world_size, buffer.topk_weights_type, buffer.topo_type) == (4, 0, 0)


def test_a_changed_attribute_reaches_the_next_call(calls: Calls) -> None:
    # vllm-ascend changes the dispatch between layers; the wrapper reads its buffer's attributes at every call
    buffer = make_buffer(calls)
    run(buffer)
    own = calls[-1][1]["sym_buffer"]
    buffer.dispatch_quant_mode, buffer.dispatch_quant_out_dtype = 4, torch.float4_e2m1fn_x2
    assert own.dispatch_quant_mode == 0
    run(buffer)
    assert (own.dispatch_quant_mode, own.dispatch_quant_out_dtype) == (4, 296)
    own.context = context = torch.zeros(2)  # the package's own changes are not undone
    run(buffer)
    assert own.context is context
    buffer.topk_weights_type = 1
    with pytest.raises(OperatorError, match="topk_weights_type=1; expected the default"):
        run(buffer)


def test_a_destroyed_buffer_takes_no_calls(calls: Calls) -> None:
    buffer = make_buffer(calls)
    run(buffer)
    own, made = calls[-1][1]["sym_buffer"], len(calls)
    buffer.destroy()
    buffer.destroy()
    assert own.destroyed == 1
    with pytest.raises(OperatorError, match="sym_buffer=a destroyed buffer; expected a live one"):
        run(buffer)
    assert len(calls) == made


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"l1_weights": [None]}, r"l1_weights\[0\]=None; expected a tensor"),
        ({"x": None}, "x=None; expected a tensor"),
        ({"weight1_type": 2.0}, "weight1_type=2.0; expected None, a torch dtype"),
        ({"l1_bias": 3}, "l1_bias=3; expected a list of tensors"),
    ],
)
def test_kinds_are_looked_at_without_a_profile_too(calls: Calls, options: dict[str, Any], words: str) -> None:
    buffer, x = make_buffer(calls), torch.zeros(3, 64)
    given = {"x": x, "topk_ids": x, "topk_weights": x, "l1_weights": [x], "l2_weights": [x], "sym_buffer": buffer}
    with pytest.raises(OperatorError, match=words):
        mega_moe(**given | options)
    assert [name for name, _ in calls] == ["communicator", "create"]


@pytest.mark.parametrize("name", ["l1_weights", "l2_weights"])
def test_a_mixed_list_is_rejected_without_a_profile_too(calls: Calls, name: str) -> None:
    # The kernels of A2 and A3 read format and type of the first entry and take the others for the same (op aclnn).
    buffer, x = make_buffer(calls), torch.zeros(3, 64)
    mixed = [torch.zeros(32, 64, dtype=torch.int8), format_cast(torch.zeros(32, 64).to(torch.int8), FRACTAL_NZ)]
    given = {"l1_weights": [x], "l2_weights": [x]} | {name: mixed}
    with pytest.raises(OperatorError, match=rf"{name}\[1\]=FRACTAL_NZ .*; expected ND .*, as {name}\[0\]"):
        mega_moe(x, x.int(), x, sym_buffer=buffer, **given)
    assert [entry for entry, _ in calls] == ["communicator", "create"]


def test_a_group_is_needed(calls: Calls) -> None:
    with settings(backend="cann"), pytest.raises(OperatorError, match="group=None"):
        get_symm_buffer_for_mega_moe(None, 8, 16, 2, 64, 32)


def test_cann_by_name_without_its_packages_is_rejected() -> None:
    backend.resolve.cache_clear()
    with settings(backend="cann"), pytest.raises(OperatorError, match="no package torch_npu"):
        get_symm_buffer_for_mega_moe(None, 8, 16, 2, 64, 32)
