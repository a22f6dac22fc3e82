"""Silent faults of one rank's own kernel: clamps, weights and arguments that it misreads or does not read.

A `shown_` function returns whether the fault is there although nothing was raised; a `tried_` one is rejected.
"""

import torch
from ops.operands import Form, call_arguments
from oracle.case import Case
from simulator.faults import differs
from simulator.scenes import inputs, layer, simulate, twin

from vllm_megamoe.layout import AclFormat, format_cast

# Clamp


def shown_clamp_0(rank: int, name: str) -> bool:
    case = layer("a8w8-fp")
    want = twin("none", case, rank, activation_clamp=0.0)  # the documents: 0 is "not enabled"
    return bool(want.y.any()) and not simulate(name, case, rank, activation_clamp=0.0).y.any()


def tried_clamp_0(rank: int, name: str) -> None:
    twin(name, layer("a8w8-fp"), rank, activation_clamp=0.0)


def shown_clamp_ignored(rank: int, name: str) -> bool:
    case = layer("a8w8-fp", small_950=True)
    got = simulate(name, case, rank, activation_clamp=0.5)
    return not differs(got, twin("none", case, rank)) and differs(got, twin("none", case, rank, activation_clamp=0.5))


def tried_clamp_ignored(rank: int, name: str) -> None:
    twin(name, layer("a8w8-fp", small_950=True), rank, activation_clamp=0.5)


def shown_clamp_of_situglu(rank: int, name: str) -> bool:
    case, act = layer("a8w8-fp"), {"activation": "situglu", "activation_params": {"beta": 1.0}}
    got = simulate(name, case, rank, **act, activation_clamp=0.5)
    return bool(got.y.any()) and not differs(got, simulate(name, case, rank, **act))


def tried_clamp_of_situglu(rank: int, name: str) -> None:
    changes = {"activation": "situglu", "activation_params": {"beta": 1.0}, "activation_clamp": 0.5}
    twin(name, layer("a8w8-fp"), rank, **changes)


# Misread weights


def shown_fp4(rank: int, name: str, use_case: str) -> bool:
    case = layer(use_case, small_950=True)
    form = plain_fp4(case, rank)
    got, want = simulate(name, case, rank, **form), twin("none", case, rank, **form)
    return differs(got, want) and got.counts == want.counts


def plain_fp4(case: Case, rank: int) -> dict[str, list[torch.Tensor]]:
    """FP4 weights as 950 in 9.1.0 takes them: stacked, in rows."""
    given = call_arguments(case, rank, Form(blocks=False, stacked=True))
    return {"l1_weights": given["l1_weights"], "l2_weights": given["l2_weights"]}


def tried_fp4(rank: int, name: str, use_case: str) -> None:
    case = layer(use_case, small_950=True)
    twin(name, case, rank, **plain_fp4(case, rank))


def int32_rows(case: Case, rank: int) -> dict[str, list[torch.Tensor] | None]:
    """INT4 in int32, in rows, which nobody cast."""
    given = call_arguments(case, rank, Form(blocks=False, carrier="int32"))
    return {name: given[name] for name in ("l1_weights", "l2_weights")} | {"weight1_type": None, "weight2_type": None}


def shown_int32_rows(rank: int, name: str) -> bool:
    case = layer("a8w4-int")
    form = int32_rows(case, rank)
    got, want = simulate(name, case, rank, **form), twin("none", case, rank, **form)
    return differs(got, want) and got.counts == want.counts


def tried_int32_rows(rank: int, name: str) -> None:
    case = layer("a8w4-int")
    twin(name, case, rank, **int32_rows(case, rank))


def mixed_list(case: Case, rank: int) -> dict[str, list[torch.Tensor]]:
    """The second expert's weight is in rows, all others in blocks."""
    rows = call_arguments(case, rank, Form(blocks=False))["l1_weights"]
    return {"l1_weights": [inputs(case, rank)["l1_weights"][0], rows[1]]}


def shown_mixed_list(rank: int, name: str) -> bool:
    case = layer("a8w8-int")
    return differs(simulate(name, case, rank, **mixed_list(case, rank)), simulate(name, case, rank))


def tried_mixed_list(rank: int, name: str) -> None:
    case = layer("a8w8-int")
    twin(name, case, rank, **mixed_list(case, rank))


def other_format(case: Case, rank: int, which: str, fmt: AclFormat) -> dict[str, list[torch.Tensor]]:
    """One of the two weights in another format than the operator has a kernel for."""
    return {which: [format_cast(weight, fmt) for weight in inputs(case, rank)[which]]}


def shown_other_format(rank: int, name: str, use_case: str, which: str, fmt: AclFormat) -> bool:
    case = layer(use_case)
    form = other_format(case, rank, which, fmt)
    # The bytes are the right ones, so the twin computes the right rows.
    want = twin("none", case, rank, **form)
    got = simulate(name, case, rank, **form)
    return differs(got, want) and got.counts == want.counts and not differs(want, simulate(name, case, rank))


def tried_other_format(rank: int, name: str, use_case: str, which: str, fmt: AclFormat) -> None:
    case = layer(use_case)
    twin(name, case, rank, **other_format(case, rank, which, fmt))


# Arguments that nobody reads


def shared_experts(case: Case, rank: int) -> dict[str, list[torch.Tensor]]:
    """The first routed expert of the rank once more, as a shared one."""
    given = inputs(case, rank)
    names = [name for name in ("l1_weights", "l2_weights", "l1_weights_sf", "l2_weights_sf") if name in given]
    return {f"shared_{name}": given[name][:1] for name in names}


def shown_shared_experts(rank: int, name: str, use_case: str) -> bool:
    case = layer(use_case)
    shared = shared_experts(case, rank)
    got = simulate(name, case, rank, **shared)
    return not differs(got, twin("none", case, rank)) and differs(got, twin("none", case, rank, **shared))


def tried_shared_experts(rank: int, name: str, use_case: str) -> None:
    case = layer(use_case)
    twin(name, case, rank, **shared_experts(case, rank))


def some_bias() -> dict[str, list[torch.Tensor]]:
    return {"l1_bias": [torch.ones(2, 2048)], "l2_bias": [torch.ones(2, 1024)]}


def shown_bias(rank: int, name: str) -> bool:
    case = layer("a8w8-fp")
    return not differs(simulate(name, case, rank, **some_bias()), twin("none", case, rank))


def tried_bias(rank: int, name: str) -> None:
    twin(name, layer("a8w8-fp"), rank, **some_bias())


def short_scales(case: Case, rank: int) -> dict[str, list[torch.Tensor]]:
    """Channel scales of the first layer's gate half alone."""
    return {"l1_weights_sf": [scale[:1024].contiguous() for scale in inputs(case, rank)["l1_weights_sf"]]}


def shown_short_scales(rank: int, name: str, use_case: str) -> bool:
    case = layer(use_case)
    got, want = simulate(name, case, rank, **short_scales(case, rank)), twin("none", case, rank)
    return differs(got, want) and got.counts == want.counts


def tried_short_scales(rank: int, name: str, use_case: str) -> None:
    case = layer(use_case)
    twin(name, case, rank, **short_scales(case, rank))


def long_scales(rank: int, name: str) -> bool:
    """More scales than channels: the kernel does not come to the others."""
    case = layer("a8w8-int")
    longer = {"l1_weights_sf": [torch.cat([scale, scale]) for scale in inputs(case, rank)["l1_weights_sf"]]}
    return not differs(simulate(name, case, rank, **longer), twin("none", case, rank))
