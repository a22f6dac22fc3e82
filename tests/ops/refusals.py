"""What two ranks do in test_refusals: rank 1 makes a wrong call, in one of many ways; rank 0 makes a right one."""

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from ops.operands import Form, buffer_arguments, call_arguments
from oracle.make import Shape, make_case
from profiles.layers import DEMO
from profiles.layers import buffer_arguments as product_buffer
from profiles.layers import call_arguments as product_call
from torch import Tensor
from torch import distributed as dist

from vllm_megamoe.layout import AclFormat, format_cast
from vllm_megamoe.ops import SymmBuffer, get_symm_buffer_for_mega_moe, mega_moe, settings
from vllm_megamoe.ops.twin import link

BAD = 1
Outcome = tuple[str, str]
Wrong = tuple[str, Callable[[dict[str, Any], SymmBuffer], None]]


def _set(name: str, value: Any) -> Callable[[dict[str, Any], SymmBuffer], None]:
    """An argument becomes this value."""

    def change(arguments: dict[str, Any], buffer: SymmBuffer) -> None:
        arguments[name] = value

    return change


def _attribute(name: str, value: Any) -> Callable[[dict[str, Any], SymmBuffer], None]:
    """An attribute of the buffer becomes this value."""

    def change(arguments: dict[str, Any], buffer: SymmBuffer) -> None:
        setattr(buffer, name, value)

    return change


def _blocks(arguments: dict[str, Any], buffer: SymmBuffer) -> None:
    arguments["x"] = format_cast(arguments["x"], AclFormat.FRACTAL_NZ)


def _turn(arguments: dict[str, Any], buffer: SymmBuffer) -> None:
    arguments["l1_weights"] = [weight.t().contiguous() for weight in arguments["l1_weights"]]


def _mix(arguments: dict[str, Any], buffer: SymmBuffer) -> None:
    first, *rest = arguments["l1_weights"]
    arguments["l1_weights"] = [format_cast(first, AclFormat.FRACTAL_NZ), *rest]


WRONG: list[Wrong] = [
    # found before anything is read: what a schema does not take
    ("l1_weights[0]=None", _set("l1_weights", [None])),
    ("l1_weights=None", _set("l1_weights", None)),
    ("x=None", _set("x", None)),
    ("topk_ids=None", _set("topk_ids", None)),
    ("topk_weights='w'", _set("topk_weights", "w")),
    ("x=a FormattedTensor", _blocks),
    ("shared_l1_bias=given", _set("shared_l1_bias", [torch.zeros(128)])),
    ("weight1_type='int8'", _set("weight1_type", "int8")),
    ("activation=7", _set("activation", 7)),
    ("activation_clamp='7'", _set("activation_clamp", "7")),
    ("activation_params=7", _set("activation_params", 7)),
    # found when it is read
    ("weight1_type=7", _set("weight1_type", 7)),
    ("activation='relu'", _set("activation", "relu")),
    ("l1_weights=no tensors", _set("l1_weights", [])),
    ("l1_weights[1]=ND", _mix),
    ("l1_weights=K=128, N=96", _turn),
    ("dispatch_quant_mode=2.0", _attribute("dispatch_quant_mode", 2.0)),
    ("intermediate_hidden=7", _attribute("intermediate_hidden", 7)),
    ("sym_buffer=a destroyed buffer", lambda arguments, buffer: buffer.destroy()),
]


def _fresh() -> tuple[dict[str, Any], SymmBuffer]:
    case = make_case("a8w8-int", Shape(tokens=(5, 3)))
    # Far longer than the test's patience: whoever waits is never told.
    with settings(timeout_s=3600):
        buffer = get_symm_buffer_for_mega_moe(dist.group.WORLD, **buffer_arguments(case))
    return call_arguments(case, dist.get_rank(), Form()), buffer


def _attempt(arguments: dict[str, Any], buffer: SymmBuffer) -> Outcome | Tensor:
    try:
        return mega_moe(**arguments, sym_buffer=buffer)[0]
    except (ValueError, RuntimeError) as e:
        return type(e).__name__, str(e)


def first_call(place: int) -> tuple[Outcome, bool]:
    """The first call on a new buffer is WRONG[place] on rank BAD: its outcome, and whether a later one is right."""
    arguments, buffer = _fresh()
    want = _attempt(arguments, buffer)
    wrong, fresh = _fresh()
    if dist.get_rank() == BAD:
        WRONG[place][1](wrong, fresh)
    found = _attempt(wrong, fresh)
    assert isinstance(want, Tensor)
    again = _attempt(arguments, buffer)
    assert not isinstance(found, Tensor), "the call was taken"
    return found, isinstance(again, Tensor) and again.equal(want)


def after_the_peer_has_left() -> tuple[str, str, list[str]]:
    """Rank BAD makes a wrong call when nothing can be sent any more: its own reason, and what it notes beside."""
    arguments, buffer = _fresh()
    if dist.get_rank() != BAD:
        return "", "", []
    arguments["topk_ids"] = arguments["topk_ids"] + 50

    def broken(*message: Any, **options: Any) -> Any:
        raise RuntimeError("Connection closed by peer [127.0.0.1]:1234")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(link.dist, "isend", broken)
        try:
            mega_moe(**arguments, sym_buffer=buffer)
        except (ValueError, RuntimeError) as e:
            return type(e).__name__, str(e), e.__notes__
    return "", "", []


def windows(profile: str, sizes: list[str]) -> Outcome | None:
    """Each rank has a HCCL_BUFFSIZE of its own: the call's outcome, None for a result."""
    os.environ["HCCL_BUFFSIZE"] = sizes[dist.get_rank()]
    try:
        with settings(profile=profile, timeout_s=30):
            buffer = get_symm_buffer_for_mega_moe(dist.new_group([0, 1]), **product_buffer("a16w16", DEMO))
            found = _attempt(product_call("a16w16", DEMO, dist.get_rank()), buffer)
    finally:
        del os.environ["HCCL_BUFFSIZE"]
    return None if isinstance(found, Tensor) else found


def topologies() -> Outcome | None:
    """Rank 1 says that the communicator spans super-nodes, rank 0 does not."""
    with settings(profile="950@9.2", topology=("mte", "urma")[dist.get_rank()], timeout_s=30):
        buffer = get_symm_buffer_for_mega_moe(dist.new_group([0, 1]), **product_buffer("a8w8-fp", DEMO))
        found = _attempt(product_call("a8w8-fp", DEMO, dist.get_rank()), buffer)
    return None if isinstance(found, Tensor) else found


def on_a_product(profile: str, kind: str, changes: dict[str, Any], call: dict[str, Any]) -> Outcome | None:
    """A call of a use case on a product: its outcome."""
    with settings(profile=profile, timeout_s=30):
        try:
            group = dist.new_group([0, 1])
            buffer = get_symm_buffer_for_mega_moe(group, **product_buffer(kind, DEMO) | changes)
        except ValueError as e:
            return type(e).__name__, f"creation: {e}"
        found = _attempt(product_call(kind, DEMO, dist.get_rank()) | call, buffer)
    return None if isinstance(found, Tensor) else found


def kept_by_a_failure(profile: str) -> list[str]:
    """A call fails; then buffers of another dispatch: while the first lives, once it is gone, once one is destroyed."""
    group, found = dist.new_group([0, 1]), []

    def make(kind: str) -> Any:
        return get_symm_buffer_for_mega_moe(group, **product_buffer(kind, DEMO))

    def attempt(kind: str) -> Any:
        try:
            buffer = make(kind)
        except ValueError as e:
            found.append(str(e))
            return None
        found.append("")
        return buffer

    with settings(profile=profile, timeout_s=30):
        failure: BaseException
        try:
            mega_moe(**product_call("a8w8-int", DEMO, dist.get_rank()), sym_buffer=make("a16w16"))
        except ValueError as e:
            failure = e  # keeps the frames of the call, and with them the buffer
        kept = attempt("a8w8-int")
        del failure
        kept = attempt("a8w8-int")
        assert kept is not None
        kept.destroy()
        attempt("a16w16")
    return found
