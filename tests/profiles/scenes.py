"""What the two ranks do in test_twin and test_twin_ranks; each scene on a communicator of its own."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from profiles.layers import DEMO, LEGAL_91, Size, buffer_arguments, call_arguments, stacked
from torch import Tensor
from torch import distributed as dist

from vllm_megamoe.layout import AclFormat, format_cast
from vllm_megamoe.ops import get_symm_buffer_for_mega_moe, mega_moe, settings

Change = Callable[[dict[str, Any], int], None]


@dataclass(frozen=True)
class Scene:
    """One buffer and one call.

    `change` names a function of CHANGES that alters the call's arguments; `environment` holds during the scene.
    """

    profile: str
    kind: str
    buffer: dict[str, Any] = field(default_factory=dict)
    change: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    topology: str = "auto"
    size: Size = DEMO


def _router_bf16(call: dict[str, Any], rank: int) -> None:
    call["topk_weights"] = call["topk_weights"].to(torch.bfloat16)


def _clamp_0(call: dict[str, Any], rank: int) -> None:
    call["activation_clamp"] = 0.0


def _clamp_7(call: dict[str, Any], rank: int) -> None:
    call["activation_clamp"] = 7.0


def _swigluoai(call: dict[str, Any], rank: int) -> None:
    call["activation"] = "swigluoai"


def _fewer_rows(call: dict[str, Any], rank: int) -> None:
    for name in ("x", "topk_ids", "topk_weights"):
        call[name] = call[name][:3]


def _fewer_rows_on_rank_1(call: dict[str, Any], rank: int) -> None:
    if rank == 1:
        _fewer_rows(call, rank)


def _to_rank_1(call: dict[str, Any], rank: int) -> None:
    """All tokens of both ranks to both experts of rank 1: 16 rows there."""
    call["topk_ids"] = torch.tensor([[2, 3]] * len(call["x"]), dtype=torch.int32)


def _mask(call: dict[str, Any], rank: int) -> None:
    call["x_active_mask"] = torch.tensor([1, 0, 1, 1], dtype=torch.int8)


def _no_ids(call: dict[str, Any], rank: int) -> None:
    call["topk_ids"][1] = -1


def _stacked(call: dict[str, Any], rank: int) -> None:
    call.update(stacked(call))


def _five_ids(call: dict[str, Any], rank: int) -> None:
    _stacked(call, rank)
    call["topk_ids"] = torch.arange(5, dtype=torch.int32).expand(len(call["x"]), 5).contiguous()
    call["topk_weights"] = torch.ones(len(call["x"]), 5)


def _stacked_clamp(call: dict[str, Any], rank: int) -> None:
    _stacked(call, rank)
    _clamp_7(call, rank)


def _stacked_fewer_rows(call: dict[str, Any], rank: int) -> None:
    _stacked(call, rank)
    _fewer_rows(call, rank)


def _int32_rows(call: dict[str, Any], rank: int) -> None:
    """INT4 in int32 that was never cast to blocks."""
    for name in ("l1_weights", "l2_weights"):
        call[name] = [format_cast(weight, AclFormat.ND).contiguous().view(torch.int32) for weight in call[name]]
    del call["weight1_type"], call["weight2_type"]


CHANGES: dict[str, Change] = {
    name.removeprefix("_"): value for name, value in globals().items() if callable(value) and name.startswith("_")
}


def attempt(scene: Scene) -> tuple[str, str]:
    """Where the scene ended, and how: ("creation" or "call", the error's class and text), or ("", "")."""
    for name, value in scene.environment.items():
        os.environ[name] = value
    where = "creation"
    try:
        with settings(profile=scene.profile, topology=scene.topology, timeout_s=30):
            buffer = get_symm_buffer_for_mega_moe(
                dist.new_group([0, 1]), **buffer_arguments(scene.kind, scene.size) | scene.buffer
            )
            where = "call"
            mega_moe(**_call(scene), sym_buffer=buffer)
    except (ValueError, RuntimeError) as e:
        return where, f"{type(e).__name__}: {e}"
    finally:
        for name in scene.environment:
            del os.environ[name]
    return "", ""


def attempts(scenes: list[Scene]) -> list[tuple[str, str]]:
    """Several scenes, one after the other."""
    return [attempt(scene) for scene in scenes]


def results(scenes: list[Scene]) -> list[tuple[Tensor, Tensor]]:
    """y and expert_token_nums of each scene, y as float32."""
    found = []
    for scene in scenes:
        with settings(profile=scene.profile, topology=scene.topology, timeout_s=30):
            buffer = get_symm_buffer_for_mega_moe(
                dist.new_group([0, 1]), **buffer_arguments(scene.kind, scene.size) | scene.buffer
            )
            y, counts = mega_moe(**_call(scene), sym_buffer=buffer)
        found.append((y.float(), counts))
    return found


def _call(scene: Scene) -> dict[str, Any]:
    rank = dist.get_rank()
    arguments = call_arguments(scene.kind, scene.size, rank)
    if scene.profile == "950@9.1" and not scene.change:
        _stacked(arguments, rank)
    if scene.change:
        CHANGES[scene.change](arguments, rank)
    return arguments


def windows(profiles: list[str]) -> list[int]:
    """ccl_buffer_size of a buffer in each profile."""
    found = []
    for name in profiles:
        kind, size = ("a8w8-fp", LEGAL_91) if name.startswith("950") else ("a16w16", DEMO)
        with settings(profile=name):
            buffer = get_symm_buffer_for_mega_moe(dist.new_group([0, 1]), **buffer_arguments(kind, size))
        found.append(buffer.ccl_buffer_size)
    return found


def one_after_another(profile: str, kinds: list[str], destroy: bool) -> list[str]:
    """Buffers for these use cases on one communicator, the earlier ones destroyed or kept: the error of each, or ""."""
    group, kept, found = dist.new_group([0, 1]), [], []
    for kind in kinds:
        try:
            with settings(profile=profile):
                kept.append(get_symm_buffer_for_mega_moe(group, **buffer_arguments(kind, DEMO)))
            found.append("")
        except ValueError as e:
            found.append(str(e))
        if destroy and kept:
            kept[-1].destroy()
    return found


def changed_between_calls(profile: str) -> list[str]:
    """One buffer whose dispatch is changed between two layers, as vllm-ascend does: the error of each call, or ""."""
    with settings(profile=profile):
        buffer = get_symm_buffer_for_mega_moe(dist.new_group([0, 1]), **buffer_arguments("a16w16", DEMO))
    found = []
    for kind in ("a16w16", "a8w8-int"):
        arguments = buffer_arguments(kind, DEMO)
        buffer.dispatch_quant_mode = arguments["dispatch_quant_mode"]
        buffer.dispatch_quant_out_dtype = arguments["dispatch_quant_out_dtype"]
        try:
            mega_moe(**call_arguments(kind, DEMO, dist.get_rank()), sym_buffer=buffer)
            found.append("")
        except ValueError as e:
            found.append(str(e))
    return found


def created_while_capturing(profile: str) -> str:
    """The error of a creation while a graph is captured: torch says so, for no graph is captured on a CPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.compiler, "is_compiling", lambda: True)
        return attempt(Scene(profile, "a16w16"))[1]


def judged_later(profile: str, mb: str) -> str:
    """A buffer that was made without a profile, called under one: the error of the call."""
    with settings(profile="none"):
        buffer = get_symm_buffer_for_mega_moe(dist.new_group([0, 1]), **buffer_arguments("a16w16", DEMO))
    with pytest.MonkeyPatch.context() as patch, settings(profile=profile, timeout_s=30):
        patch.setenv("HCCL_BUFFSIZE", mb)
        try:
            mega_moe(**call_arguments("a16w16", DEMO, dist.get_rank()), sym_buffer=buffer)
        except ValueError as e:
            return str(e)
    return ""


def other_profiles(profiles: list[str]) -> str:
    """A call for which each rank has a profile of its own: the error."""
    scene = Scene(profiles[dist.get_rank()], "a16w16")
    return attempt(scene)[1]


def recovered() -> tuple[list[str], bool]:
    """Calls that all ranks reject once they have met, then one that is right: the errors, and whether it was."""
    rank = dist.get_rank()
    arguments = call_arguments("a16w16", DEMO, rank)
    with settings(profile="none"):
        free = get_symm_buffer_for_mega_moe(dist.new_group([0, 1]), **buffer_arguments("a16w16", DEMO))
        want = mega_moe(**arguments, sym_buffer=free)[0]
    with settings(profile="a3@9.2", timeout_s=30):
        buffer = get_symm_buffer_for_mega_moe(dist.new_group([0, 1]), **buffer_arguments("a16w16", DEMO))
    errors = []
    for _ in range(2):
        wrong = call_arguments("a16w16", DEMO, rank)
        _fewer_rows_on_rank_1(wrong, rank)
        try:
            mega_moe(**wrong, sym_buffer=buffer)
        except ValueError as e:
            errors.append(str(e))
    return errors, mega_moe(**arguments, sym_buffer=buffer)[0].equal(want)
