"""Calls of the operator's real Python package through our adapter, over the simulated device, beside the twin's.

One call for each value of each dimension that the profile's table of limits has: what a layer of ours can ask for.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from contract.support.arrivals import Arrivals
from contract.support.rank import Rank
from ops.operands import Form, buffer_arguments, call_arguments
from oracle.case import Case
from oracle.make import Shape, make_case
from simulator.scenes import SMALL_950, layer
from torch import distributed as dist

from vllm_megamoe.errors import MegaMoeError
from vllm_megamoe.ops import get_symm_buffer_for_mega_moe, mega_moe, settings
from vllm_megamoe.profiles.limits import Limits, limits_of
from vllm_megamoe.profiles.profile import Profile, find_profile

MASK = (1, 0, 1, 1, 0, 1)
PARAMETERS = {"swigluoai": {"alpha": 1.5, "beta": 0.5}, "situglu": {"beta": 1.25, "linear_beta": 2.0}}
RELEASE_LACKS, HEAD_LACKS = ("topk_weights_type", "combine_comm_mode"), ("combine_comm_mode",)


@dataclass(frozen=True)
class Call:
    """One call: the layer, how its weights are handed over, and what differs from a plain call."""

    name: str
    case: Case
    form: Form
    create: dict[str, Any] = field(default_factory=dict)
    given: dict[str, Any] = field(default_factory=dict)


def calls(profile: Profile) -> Iterator[Call]:
    """Every call of the profile."""
    limits = limits_of(profile)
    for use_case in sorted(case.value for case in limits.use_cases.value):
        case = layer(use_case, small_950=profile.name == "950@9.1")
        for layout in limits.layouts.value:
            form = Form(blocks=use_case not in ("a16w16", "a8w8-fp"), stacked=layout == "stacked")
            yield from _of_form(profile, limits, Call(f"{use_case} {layout}", case, form, _capacity(profile, case)))


def _capacity(profile: Profile, case: Case) -> dict[str, Any]:
    """Twice what can come where the product counts packed INT4 rows (limits, receive_factor_int4)."""
    factor = limits_of(profile).receive_factor_int4.value
    if case.use_case != "a8w4-int" or factor < 2:
        return {}
    return {"max_recv_token_num": factor * _bound(case)}


def _bound(case: Case) -> int:
    """Rows that can come to a rank."""
    rows, topk = case.ranks[0].topk_ids.shape
    return int(rows * 2 * min(topk, case.num_experts // 2))


def _of_form(profile: Profile, limits: Limits, plain: Call) -> Iterator[Call]:
    def other(what: str, *, case: Case = plain.case, form: Form = plain.form, **more: dict[str, Any]) -> Call:
        create = plain.create | more.get("create", {})
        return Call(f"{plain.name}, {what}", case, form, create, more.get("given", {}))

    yield plain
    use_case = plain.case.use_case
    yield other("bounded receive", create={"max_recv_token_num": _bound(plain.case)} | plain.create)
    if limits.mask.value:
        yield other("mask", given={"x_active_mask": torch.tensor(MASK, dtype=torch.int8)})
    if limits.clamp.value != "none":
        yield other("clamp", given={"activation_clamp": 2.0})
    for name in limits.activations.value:
        if name != "swiglu":
            clamp = {} if name == "situglu" else {"activation_clamp": 2.0}
            yield other(name, given={"activation": name, "activation_params": PARAMETERS.get(name), **clamp})
    if use_case == "a8w4-int":
        yield other("int32", form=Form(True, False, "int32"))
    if use_case == "a8w8-fp":
        small = SMALL_950 if profile.revision == "9.1" else Shape((6, 6), 4, 1024, 1024, 2)
        yield other("e5m2", case=make_case(use_case, small, act_elem="e5m2"))
    if use_case == "a8w8-fp" and profile.revision != "9.1":
        yield other("in blocks", form=Form(True, plain.form.stacked))
    if "BF16" in limits.router_weights.value:
        yield other("bf16 router weights", given={"topk_weights": torch.bfloat16})
    for mode in limits.combine_quant_modes.value[1:]:
        yield other(f"combine {mode}", create={"combine_quant_mode": mode})
    for kind in limits.topk_weights_types.value[1:]:
        yield other(f"weights forwarded {kind}", create={"topk_weights_type": kind})
    if limits.rows.value == "any":
        yield other("uneven rows", case=layer(use_case, (6, 3)))
    if limits.max_shared_experts.value and use_case in {case.value for case in limits.shared_use_cases.value}:
        for count in (1, 2):
            case = make_case(use_case, Shape((6, 6), 4, 1024, 1024, 2), shared=count)
            yield other(f"{count} shared", case=case)


def run(rank: Rank) -> dict[str, Any]:
    """What arrived, and whether it equals the twin, for each call; and what is said to each call that is refused."""
    from profiles.rejections import REFUSALS
    from profiles.scenes import attempt

    dist.init_process_group("hccl", init_method=rank.meeting_point, rank=rank.number, world_size=rank.size)
    torch.set_num_threads(1)
    profile = find_profile(os.environ["VLLM_MEGAMOE_SIMULATED_NPU"])
    arrivals = Arrivals()
    made = {call.name: _both(profile, call, rank.number, arrivals) for call in calls(profile)}
    # What this revision has no argument for is refused at once, for that reason: `_unsayable`.
    lacks = RELEASE_LACKS if profile.revision == "9.1" else HEAD_LACKS
    mine = [each for each in REFUSALS if each.scene.profile == profile.name and not set(lacks) & set(each.scene.buffer)]
    refused = [[each.where, each.message, *attempt(each.scene)] for each in mine]
    return {
        "calls": made,
        "refused": refused,
        "unsayable": _unsayable(profile, rank.number),
        "signature": arrivals.names,
        "schema": arrivals.schema,
        "modules": arrivals.modules,
    }


def _arguments(call: Call, rank: int) -> dict[str, Any]:
    given = call_arguments(call.case, rank, call.form) | call.given
    if isinstance(given["topk_weights"], torch.dtype):
        given["topk_weights"] = torch.from_numpy(call.case.ranks[rank].topk_weights).to(given["topk_weights"])
    return {name: value for name, value in given.items() if value is not None}


def _both(profile: Profile, call: Call, rank: int, arrivals: Arrivals) -> dict[str, Any]:
    lacks = RELEASE_LACKS if profile.revision == "9.1" else HEAD_LACKS
    create = {key: value for key, value in (buffer_arguments(call.case) | call.create).items()}
    create = {key: value for key, value in create.items() if key not in lacks or value}
    answers = []
    for backend in ("cann", "cpu"):
        with settings(backend=backend, profile=profile.name, timeout_s=60):
            buffer = get_symm_buffer_for_mega_moe(dist.new_group([0, 1]), **create)
            given = _arguments(call, rank)
            arrivals.expect(buffer, given)
            answers.append(mega_moe(**given, sym_buffer=buffer))
    (y, counts), (want, expected) = answers
    real = torch.tensor(MASK, dtype=torch.bool) if "mask" in call.name else slice(None)
    return {
        "equal": bool(y[real].equal(want[real])) and bool(counts.equal(expected)),
        "spread": float(y[real].float().abs().max()),
        "wrong": arrivals.wrong(),
    }


def _unsayable(profile: Profile, rank: int) -> dict[str, str]:
    """The error for each argument that this revision does not have, when it is given; no profile looks at it first."""
    case = layer("a16w16")
    later = {
        "activation_params": {"alpha": 1.5},
        "shared_l1_weights": [torch.zeros(1024, 2048, dtype=torch.bfloat16)],
        "scales": torch.zeros(6, 32),
        "shared_weight1_type": 296,
        "shared_expert_quant_out_dtype": 296,
    }
    found: dict[str, str] = {}
    with settings(backend="cann", profile="none"):
        for name in RELEASE_LACKS:
            try:
                get_symm_buffer_for_mega_moe(dist.new_group([0, 1]), **buffer_arguments(case) | {name: 1})
            except MegaMoeError as error:
                found[name] = str(error)
        buffer = get_symm_buffer_for_mega_moe(dist.new_group([0, 1]), **buffer_arguments(case))
        lacks = 2 if profile.revision == "9.2" else 0  # the first two came with 9.2
        for name, value in list(later.items())[lacks:]:
            try:
                mega_moe(**call_arguments(case, rank, Form()) | {name: value}, sym_buffer=buffer)
            except MegaMoeError as error:
                found[name] = str(error)
    return found
