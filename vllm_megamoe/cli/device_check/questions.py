"""The questions that the operator's source leaves open: a call each, the answers there are, and the twin's choice.

An answer is the candidate that the device's y is nearest to, by less than a quarter of the candidates' distance. What
is expected is what the twin computes by default and what the limits of the profile say (docs/numerics.md, "Open
questions"; docs/limits.md). A function answers for one rank; both ranks run it together.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from vllm_megamoe.acl import AclFormat
from vllm_megamoe.cli.device_check.layer import RANKS, Layer, make_layer, with_ids
from vllm_megamoe.environment import hccl_buffsize
from vllm_megamoe.experts.canonical import IntExperts
from vllm_megamoe.layout.cast import format_cast, format_of, stack_experts
from vllm_megamoe.numerics.switches import Numerics
from vllm_megamoe.ops.cann.installed import installed
from vllm_megamoe.profiles.limits import limits_of
from vllm_megamoe.profiles.profile import Profile, find_profile
from vllm_megamoe.profiles.use_cases import UseCase

NEITHER = "none of them"
MIB = 1 << 20


@dataclass(frozen=True)
class Question:
    """One open question.

    Attributes:
        name: short, as the report has it.
        about: what it asks.
        asked_of: whether a profile has it.
        expected: answer that the twin and the limits take.
        ask: runs on both ranks, returns this rank's answer and the numbers behind it.
    """

    name: str
    about: str
    asked_of: Callable[[Profile], bool]
    expected: Callable[[Profile], str]
    ask: Callable[[str], tuple[str, str]]


def nearest(y: Tensor, candidates: Mapping[str, Tensor]) -> tuple[str, str]:
    """The candidate that y is, or NEITHER; and each one's distance from it, relative to y."""
    finite = [t[t.isfinite()].abs().max().item() if bool(t.isfinite().any()) else 1.0 for t in candidates.values()]
    far = 4 * max(finite)  # stands for Inf and NaN, so that where they are counts too
    seen, *others = (torch.where(t.isfinite(), t, torch.full_like(t, far)) for t in (y, *candidates.values()))
    scale = float(seen.norm()) or 1.0
    distances = {name: float((seen - t).norm()) / scale for name, t in zip(candidates, others, strict=True)}
    apart = min(float((a - b).norm()) / scale for i, a in enumerate(others) for b in others[:i])
    best = min(distances, key=lambda name: distances[name])
    shown = ", ".join(f"{name} {distance:.2e}" for name, distance in distances.items())
    return (best if distances[best] < apart / 4 else NEITHER), f"distance of y: {shown}; {apart:.2e} apart"


def _nibbles(profile: str) -> tuple[str, str]:
    layer = make_layer(profile, UseCase.A8W4_INT)
    numerics = {answer: Numerics(int4_nibbles=answer) for answer in ("twos_complement", "offset_binary")}
    return nearest(layer.on_device()[0], {answer: layer.on_twin(which)[0] for answer, which in numerics.items()})


_SCALE_BITS = {"24 bits": 0, "19 bits": 13, "18 bits": 14}
"""Kept bits of a float32 channel scale -> bits of it that are dropped."""


def cut_scales(layer: Layer, dropped: int) -> Layer:
    """The layer with channel scales that have lost their low bits."""
    experts = layer.experts
    if not isinstance(experts, IntExperts):
        return layer

    def cut(scale: Tensor) -> Tensor:
        return ((scale.view(torch.int32) >> dropped) << dropped).view(torch.float32)

    return replace(layer, experts=replace(experts, w13_scale=cut(experts.w13_scale), w2_scale=cut(experts.w2_scale)))


def _scale_bits(profile: str) -> tuple[str, str]:
    layer = make_layer(profile, UseCase.A8W8_INT)
    experts = layer.experts
    assert isinstance(experts, IntExperts)
    # All low bits set: what is dropped lowers every product alike, by 2^-10 with 19 bits kept and 2^-9 with 18.
    low = (1 << 14) - 1
    scales = {name: getattr(experts, name) for name in ("w13_scale", "w2_scale")}
    full = {name: (scale.view(torch.int32) | low).view(torch.float32) for name, scale in scales.items()}
    layer = replace(layer, experts=replace(experts, **full))
    twins = {answer: cut_scales(layer, dropped).on_twin()[0] for answer, dropped in _SCALE_BITS.items()}
    return nearest(layer.on_device()[0], twins)


def _fp16_overflow(profile: str) -> tuple[str, str]:
    layer = make_layer(profile, UseCase.A8W8_INT)
    experts = layer.experts
    assert isinstance(experts, IntExperts)
    # Sums of the second GEMM's products are some 10,000; with scales of about 2 some leave fp16 and others do not.
    layer = replace(layer, experts=replace(experts, w2_scale=experts.w2_scale * (2 / experts.w2_scale.mean())))
    numerics = {answer: Numerics(fp16_overflow=answer) for answer in ("inf", "saturate")}
    return nearest(layer.on_device()[0], {answer: layer.on_twin(which)[0] for answer, which in numerics.items()})


_AWAY, _EVEN = "half away from zero", "half to even"


def _int8_ties(profile: str) -> tuple[str, str]:
    """Rows whose scale is exactly 1 and whose other numbers lie half way between two codes."""
    layer = make_layer(profile, UseCase.A8W8_INT)
    source = torch.Generator().manual_seed(dist.get_rank())
    ties = torch.randint(-31, 31, layer.x.shape, generator=source) + 0.5
    ties[:, 0] = 127
    tied = replace(layer, x=ties.bfloat16())
    even = replace(layer, x=ties.round().bfloat16())  # torch rounds half to even
    return nearest(tied.on_device()[0], {_AWAY: tied.on_twin()[0], _EVEN: even.on_twin()[0]})


def _mx_ties(profile: str) -> tuple[str, str]:
    """E4M3 codes have 3 bits behind the point: 17/16 and 19/16 lie half way, from 1 to 9/8 to 5/4 (scale 1)."""
    layer = make_layer(profile, UseCase.A8W8_FP)
    source = torch.Generator().manual_seed(dist.get_rank())
    signs = torch.randint(0, 2, layer.x.shape, generator=source) * 2.0 - 1
    steps = torch.randint(0, 4, layer.x.shape, generator=source)
    ties = 1 + (2 * steps + 1) / 16
    away, toward = 1 + (steps + 1) / 8, 1 + (steps + steps % 2) / 8
    tied, up, even = (replace(layer, x=(values * signs).bfloat16()) for values in (ties, away, toward))
    return nearest(tied.on_device()[0], {_EVEN: even.on_twin()[0], _AWAY: up.on_twin()[0]})


def _w4a8_capacity(profile: str) -> tuple[str, str]:
    """All tokens to the experts of the last rank: the second one's rows come behind half of the bound."""
    layer = make_layer(profile, UseCase.A8W4_INT)
    layer = with_ids(layer, range(layer.size.experts - layer.size.topk, layer.size.experts))
    want = replace(layer, max_recv_token_num=4 * layer.most).on_device()[0]
    agrees = []
    for factor in (1, 2):
        y = replace(layer, max_recv_token_num=factor * layer.most).on_device()[0]
        agrees.append(bool((y - want).norm() < want.norm() / 64))
    answer = {(True, True): "once", (False, True): "twice"}.get((agrees[0], agrees[1]), NEITHER)
    return (
        answer,
        f"agrees with a bound of {4 * layer.most}: with {layer.most} {agrees[0]}, with {2 * layer.most} {agrees[1]}",
    )


def _views(profile: str) -> tuple[str, str]:
    """One expert as a view of a stack in blocks, as vllm-ascend holds it, beside the same expert by itself."""
    use_case = UseCase.A8W4_FP if find_profile(profile).is_950 else UseCase.A8W8_INT
    layer = make_layer(profile, use_case)

    def views(given: dict[str, Any]) -> dict[str, Any]:
        lists = {name: list(stack_of(given[name]).unbind(0)) for name in ("l1_weights", "l2_weights")}
        return given | lists

    want, y = layer.on_device()[0], replace(layer, arrange=views).on_device()[0]
    error = float((y - want).norm() / want.norm())
    return ("read as they are" if error < 1 / 64 else "misread"), f"relative error {error:.2e}"


def stack_of(weights: list[Tensor]) -> Tensor:
    """Matrices in one block format as one stack in that format; on an NPU the stack itself is cast."""
    if weights[0].device.type != "npu":
        return stack_experts(weights)
    rows = torch.stack([format_cast(weight, AclFormat.ND) for weight in weights])
    return format_cast(rows, format_of(weights[0]))


def _window(profile: str) -> tuple[str, str]:
    buffer = make_layer(profile, UseCase.A16W16).on_device()[2]
    size = int(getattr(buffer.ccl_buffer_size, "value", buffer.ccl_buffer_size))
    asked = hccl_buffsize() * MIB
    factor = size / asked
    return f"{factor:g} times HCCL_BUFFSIZE", f"{size} bytes are reported, {asked} were asked for"


_NO_ARGUMENT = "no such argument"


def _combine_comm_mode(profile: str) -> tuple[str, str]:
    del profile
    operator = installed()
    for function in (operator.create, operator.run):
        names = list(inspect.signature(function).parameters)
        if "combine_comm_mode" in names:
            return f"argument {names.index('combine_comm_mode')} of {function.__name__}", ", ".join(names)
    return _NO_ARGUMENT, ", ".join(inspect.signature(operator.create).parameters)


_DROPPED = "rows are dropped, expert_token_nums counts them"
NO_ANSWER = "an error or no answer"
"""What a device says that hangs or fails."""


def _overflow(profile: str) -> tuple[str, str]:
    """More rows than max_recv_token_num on the last rank."""
    use_case = UseCase.A8W8_FP if find_profile(profile).is_950 else UseCase.A16W16
    layer = make_layer(profile, use_case)
    own = layer.size.experts // RANKS
    busy = with_ids(layer, range(layer.size.experts - layer.size.topk, layer.size.experts))
    want, expected = busy.on_twin()
    y, counts, _ = replace(busy, max_recv_token_num=layer.size.tokens).on_device()
    lost = float((y - want).norm() / want.norm())
    counted, kept = counts.tolist() == expected.tolist(), lost < 1 / 64  # NaN, of slots that nobody wrote, is lost too
    answer = "rows are kept" if kept else _DROPPED if counted else "rows are dropped, not counted"
    return answer, f"{counts.tolist()} counted of {expected.tolist()} on {own} experts; y is off by {lost:.2e}"


def _on_a2_a3(profile: Profile) -> bool:
    return profile.is_a2_a3


def _on_950(profile: Profile) -> bool:
    return profile.is_950


def _in_lists(profile: Profile) -> bool:
    return "list" in limits_of(profile).layouts.value


def _always(answer: str) -> Callable[[Profile], str]:
    return lambda profile: answer


def _factor(profile: Profile) -> str:
    return "twice" if limits_of(profile).receive_factor_int4.value > 1 else "once"


QUESTIONS = (
    Question("combine_comm_mode", "where its argument is", lambda p: True, _always(_NO_ARGUMENT), _combine_comm_mode),
    Question("window", "bytes that HCCL reports", _on_a2_a3, _always("2 times HCCL_BUFFSIZE"), _window),
    Question("int4_nibbles", "how INT4 codes are read", _on_a2_a3, _always("twos_complement"), _nibbles),
    Question("scale_bits", "bits of a channel scale that count", _on_a2_a3, _always("24 bits"), _scale_bits),
    Question("fp16_overflow", "a GEMM's result beyond 65504", _on_a2_a3, _always("inf"), _fp16_overflow),
    Question("ties", "a row's number half way between two INT8 codes", _on_a2_a3, _always(_AWAY), _int8_ties),
    Question("ties", "a number half way between two E4M3 codes", _on_950, _always(_EVEN), _mx_ties),
    Question("nz_views", "an expert as a view of a stack in blocks", _in_lists, _always("read as they are"), _views),
    Question("w4a8_capacity", "how a row of A8W4-INT counts as received", _on_a2_a3, _factor, _w4a8_capacity),
    Question(
        "receive_overflow",
        "more rows than max_recv_token_num",
        lambda p: True,
        lambda p: NO_ANSWER if p.is_950 else _DROPPED,
        _overflow,
    ),
)
"""In the order in which they are asked; the last one may leave the device hanging."""


def questions_of(profile: Profile) -> tuple[Question, ...]:
    """Those that a profile has."""
    return tuple(question for question in QUESTIONS if question.asked_of(profile))


def numerics_of(answers: Mapping[str, str]) -> Numerics:
    """The twin's switches as the device has answered; where it gave none of the known answers, the defaults."""
    found: dict[str, Any] = {}
    if answers.get("int4_nibbles") == "offset_binary":
        found["int4_nibbles"] = "offset_binary"
    if answers.get("fp16_overflow") == "saturate":
        found["fp16_overflow"] = "saturate"
    return Numerics(**found)


def dropped_bits(answers: Mapping[str, str]) -> int:
    """Bits that the device drops of a channel scale."""
    return _SCALE_BITS.get(answers.get("scale_bits", ""), 0)
