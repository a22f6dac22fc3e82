"""Each silent fault of a device: what a rank sees of it on the simulated one, and the same call of the twin.

A `shown_` function returns whether the fault is there although nothing was raised; a `tried_` one is rejected.
"""

from dataclasses import replace

import numpy as np
import torch
from ops.operands import buffer_arguments
from oracle.case import Case
from simulator.scenes import Result, Simulated, inputs, layer, simulate, twin
from torch import distributed as dist

from vllm_megamoe.ops import get_symm_buffer_for_mega_moe, settings
from vllm_megamoe.simulator import deviations


def same_ids(case: Case, ids: list[list[int]]) -> Case:
    """All ranks route their tokens so."""
    routed = np.int32(ids)
    ranks = (replace(r, topk_ids=routed, topk_weights=r.topk_weights[:, : routed.shape[1]]) for r in case.ranks)
    return replace(case, ranks=tuple(ranks))


def differs(got: Result, want: Result) -> bool:
    return got.y.tobytes() != want.y.tobytes()


# Router weights


def bf16_weights(case: Case, rank: int) -> torch.Tensor:
    return torch.from_numpy(case.ranks[rank].topk_weights).bfloat16()


def shown_router_weights(rank: int, name: str) -> bool:
    case = layer("a16w16")
    weights = bf16_weights(case, rank)
    got = simulate(name, case, rank, topk_weights=weights)
    want = twin("none", case, rank, topk_weights=weights)
    # Two bf16 in a row are a float32 of about the second one's value (the low half is mantissa), so 6 float32 are read
    # out of 12 weights; the others come from behind the tensor.
    read = torch.frombuffer(bytearray(weights.view(torch.int16).numpy().tobytes()), dtype=torch.float32)
    known = twin("none", case, rank, topk_weights=torch.cat([read, read]).view(6, 2))
    half = np.array_equal(got.y[:3], known.y[:3])
    return half and differs(got, want) and got.counts == want.counts


def tried_router_weights(rank: int, name: str) -> None:
    case = layer("a16w16")
    twin(name, case, rank, topk_weights=bf16_weights(case, rank))


# Buffers of 950


def shown_second_buffer(rank: int, name: str, destroyed: bool) -> bool:
    case, scene = layer("a8w8-fp", small_950=name == "950@9.1"), Simulated(name)
    first = scene.buffer(case)
    works = bool(scene.call(first, inputs(case, rank)).y.any())
    if destroyed:
        first.destroy()
    second = scene.buffer(case)
    got = scene.call(second, inputs(case, rank))
    dead = not second.context.any() and second.ccl_buffer_size == 2 * 200 * 2**20
    return works and dead and not got.y.any() and not any(got.counts)


def tried_second_buffer(rank: int, name: str, destroyed: bool) -> None:
    case, group = layer("a8w8-fp", small_950=name == "950@9.1"), dist.new_group([0, 1])
    given = {
        "num_experts": case.num_experts,
        "num_max_tokens_per_rank": 6,
        "num_topk": case.ranks[rank].topk_ids.shape[1],
        "hidden": case.ranks[rank].x.shape[1],
        "intermediate_hidden": 1024,
        "dispatch_quant_mode": 4,
        "dispatch_quant_out_dtype": torch.float8_e4m3fn,
    }
    with settings(profile=name, timeout_s=30):
        first = get_symm_buffer_for_mega_moe(group, **given)
        if destroyed:
            first.destroy()
        get_symm_buffer_for_mega_moe(group, **given)


# Capacity


def all_to_two(use_case: str) -> Case:
    """Every token of both ranks goes to experts 0 and 1, so to rank 0: 12 rows for each."""
    return same_ids(layer(use_case), [[0, 1]] * 6)


def shown_overflow(rank: int, name: str) -> bool:
    case = all_to_two("a8w8-int")
    got = simulate(name, case, rank, create={"max_recv_token_num": 16})
    want = twin("none", case, rank)
    # failures.md B03 with 12 + 12 rows for 16 places: expert 1 keeps 4, those of rank 0; the counts tell nothing
    right = [np.array_equal(g, w) for g, w in zip(got.y, want.y, strict=True)]
    return right == ([True] * 4 + [False] * 2 if rank == 0 else [False] * 6) and got.counts == want.counts


def overflow_ends(rank: int, name: str) -> None:
    """The other ending that is reported."""
    with deviations(overflow_ends=True):
        simulate(name, all_to_two("a8w8-int"), rank, create={"max_recv_token_num": 24})
        simulate(name, all_to_two("a8w8-int"), rank, create={"max_recv_token_num": 16})


def tried_overflow(rank: int, name: str) -> None:
    twin(name, all_to_two("a8w8-int"), rank, create={"max_recv_token_num": 16})


def tried_overflow_950(rank: int, name: str) -> None:
    twin(name, all_to_two("a8w8-fp"), rank, create={"max_recv_token_num": 16})


def hang_950(rank: int, name: str) -> None:
    """The simulated device raises where the real one spins."""
    simulate(name, all_to_two("a8w8-fp"), rank, create={"max_recv_token_num": 16})


def first_expert_busy() -> Case:
    """One expert a token; of 8 rows for rank 0, 5 are expert 0's and 3 expert 1's (failures.md B05's self-test)."""
    case = layer("a8w4-int", (4, 4))
    cut = (
        replace(r, topk_ids=np.int32(ids), topk_weights=r.topk_weights[:, :1])
        for r, ids in zip(case.ranks, ([[0], [0], [1], [0]], [[0], [1], [0], [1]]), strict=True)
    )
    return replace(case, ranks=tuple(cut))


def shown_w4a8_receive(rank: int, name: str, deviate: bool, enough: bool) -> bool:
    case = first_expert_busy()
    create = {"max_recv_token_num": 2 * 8 if enough else 0}
    with deviations(w4a8_receive=deviate):
        got, want = simulate(name, case, rank, create=create), twin("none", case, rank)
    wrong = [not np.array_equal(g, w) for g, w in zip(got.y, want.y, strict=True)]
    second = [False, False, True, False] if rank == 0 else [False, True, False, True]
    return got.counts == want.counts and wrong == ([False] * 4 if enough else second)


def w4a8_receive_is_right(rank: int, name: str) -> bool:
    """The same call where no build has the fault."""
    case = first_expert_busy()
    got, want = simulate(name, case, rank), twin("none", case, rank)
    return got.counts == want.counts and not differs(got, want) and bool(got.y.any())


def tried_w4a8_receive(rank: int, name: str) -> None:
    twin(name, first_expert_busy(), rank)


# Rows


def shown_unequal_rows(rank: int, name: str, use_case: str) -> bool:
    case = layer(use_case, (6, 3))
    got, want = simulate(name, case, rank), twin("none", case, rank)
    return differs(got, want)


def tried_unequal_rows(rank: int, name: str, use_case: str) -> None:
    twin(name, layer(use_case, (6, 3)), rank)


def shown_weights_type(rank: int, name: str) -> bool:
    """Whether the modes differ can only be seen where rows are rounded after the weight: random data do."""
    case = layer("a8w8-int")
    got = simulate(name, case, rank, create={"topk_weights_type": 1})
    return not differs(got, twin("none", case, rank))


def tried_weights_type(rank: int, name: str) -> None:
    twin(name, layer("a8w8-int"), rank, create={"topk_weights_type": 1})


# Slots that nothing lands in


MASK = [1, 0, 1, 1, 0, 1]
SILENT = [1, 4]


def shown_masked_rows(rank: int, name: str) -> bool:
    """Masked rows hold another layer's rows: all buffers of a communicator are the same window."""
    first, second, scene = layer("a16w16"), layer("a16w16", seed=1), Simulated(name)
    one, other = scene.buffer(first), scene.buffer(second)
    weights = torch.ones(6, 2)
    old = scene.call(one, inputs(first, rank, topk_weights=weights))
    mask = torch.tensor(MASK, dtype=torch.int8)
    got = scene.call(other, inputs(second, rank, topk_weights=weights, x_active_mask=mask))
    want = twin("none", second, rank, topk_weights=weights, x_active_mask=mask)
    seen = [np.array_equal(got.y[t], old.y[t]) for t in range(6)]
    right = [np.array_equal(got.y[t], want.y[t]) for t in range(6)]
    return seen == [m == 0 for m in MASK] and right == [m == 1 for m in MASK] and bool((got.ids[SILENT] == 4).all())


def shown_unequal_layers(rank: int, name: str) -> bool:
    """A BF16 layer, then an INT8 one on its communicator: a masked row holds rows of other tokens.

    The slots lie behind 12 records, of 2048 bytes in the first layer and 1536 in the second, so 6144 bytes or 3 slots
    apart: token 4's slots 8 and 9 are the first layer's 5 and 6, that is token 2's second expert and token 3's first.
    """
    dense, int8, scene = layer("a16w16"), layer("a8w8-int"), Simulated(name)
    one, other = scene.buffer(dense), scene.buffer(int8)
    rows = [
        scene.call(one, inputs(dense, rank, topk_weights=torch.tensor([weights] * 6))).y
        for weights in ([1.0, 0.0], [0.0, 1.0])
    ]
    mask = torch.tensor(MASK, dtype=torch.int8)
    got = scene.call(other, inputs(int8, rank, topk_weights=torch.ones(6, 2), x_active_mask=mask))
    held = torch.from_numpy(rows[1][2] + rows[0][3]).bfloat16().float().numpy()
    return bool(held.any()) and np.array_equal(got.y[4], held)


def tried_unequal_layers(rank: int, name: str) -> None:
    group = dist.new_group([0, 1])
    with settings(profile=name, timeout_s=30):
        kept = [
            get_symm_buffer_for_mega_moe(group, **buffer_arguments(layer(use_case)))
            for use_case in ("a16w16", "a8w8-int")
        ]
    del kept


def masked_by_twin(rank: int, name: str) -> tuple[list[bool], bool]:
    """Which rows of y are all NaN, and whether ids were overwritten."""
    case, mask = layer("a16w16"), torch.tensor(MASK, dtype=torch.int8)
    got = twin(name, case, rank, x_active_mask=mask)
    return np.isnan(got.y).all(axis=1).tolist(), bool((got.ids[SILENT] == 4).all())


def unsent(case: Case, rank: int) -> torch.Tensor:
    """Token 1 goes nowhere, token 4 to one expert instead of two."""
    ids = torch.from_numpy(case.ranks[rank].topk_ids.copy())
    ids[1], ids[4, 1] = -1, -1
    return ids


def shown_minus_one(rank: int, name: str) -> tuple[list[bool], list[bool]]:
    """After a call that filled all slots: which rows are right, which hold a sum with the old call's row."""
    case, scene = layer("a8w8-fp"), Simulated(name)
    buffer = scene.buffer(case)
    whole = scene.call(buffer, inputs(case, rank))
    got = scene.call(buffer, inputs(case, rank, topk_ids=unsent(case, rank)))
    want = twin("none", case, rank, topk_ids=unsent(case, rank))
    right = [np.array_equal(got.y[t], want.y[t]) for t in range(6)]
    return right, [np.array_equal(got.y[t], whole.y[t]) for t in range(6)]


def minus_one_by_twin(rank: int, name: str) -> list[bool]:
    case = layer("a8w8-fp")
    got = twin(name, case, rank, topk_ids=unsent(case, rank))
    return np.isnan(got.y).all(axis=1).tolist()


def first_call_masked(rank: int, name: str) -> bool:
    """Before anything was written, the window is not zero."""
    got = simulate(name, layer("a16w16"), rank, x_active_mask=torch.tensor(MASK, dtype=torch.int8))
    return bool(np.isnan(got.y[SILENT]).all())


def strided_ids(rank: int, name: str) -> bool:
    """ids of a strided tensor are copied before they are overwritten."""
    case = layer("a16w16")
    wide = torch.zeros(6, 4, dtype=torch.int32)
    wide[:, ::2] = torch.from_numpy(case.ranks[rank].topk_ids)
    got = simulate(name, case, rank, topk_ids=wide[:, ::2], x_active_mask=torch.tensor(MASK, dtype=torch.int8))
    return np.array_equal(got.ids, case.ranks[rank].topk_ids)
