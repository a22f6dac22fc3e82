"""What a caller sees of a simulated buffer (op wrapper mega_moe.py, comm_context.py)."""

from typing import Any

import numpy as np
from simulator.scenes import Simulated, inputs, layer, twin

from vllm_megamoe.testing.ranks import Failure, World

MIB = 1 << 20


def attributes(rank: int, name: str) -> dict[str, Any]:
    case = layer("a8w8-fp" if name.startswith("950") else "a16w16")
    buffer = Simulated(name).buffer(case)
    found = {key: value for key, value in vars(buffer).items() if isinstance(value, int | str)}
    return found | {"context": (tuple(buffer.context.shape), str(buffer.context.dtype), bool(buffer.context.any()))}


def test_attributes_of_a2_a3(two_ranks: World) -> None:
    for rank, found in enumerate(two_ranks.run(attributes, [(0, "a3@9.1"), (1, "a3@9.1")])):
        assert found["ccl_buffer_size"] == 2 * 200 * MIB  # torch_api.txt: HCCL_BUFFSIZE is 200 MB, for one direction
        assert (found["rank_id"], found["ep_world_size"], found["num_experts"]) == (rank, 2, 4)
        assert (found["hidden"], found["intermediate_hidden"], found["comm_alg"]) == (1024, 0, "")
        assert found["context"] == ((4100,), "torch.int32", True)
        assert "topk_weights_type" not in found


def test_attributes_of_950(two_ranks: World) -> None:
    # The size function of 2026-08 (op csrc, arch35): sync, a bitmap of 64 routes and a count for each expert and rank,
    # records of x and scales, slots in bf16; each area fills whole blocks of 512 bytes.
    areas = [60 * 1024, 2 * 2 * (32 + 32), 6 * (1024 + 32), 6 * 2 * 2048]
    for found in two_ranks.run(attributes, [(0, "950@9.2"), (1, "950@9.2")]):
        assert found["ccl_buffer_size"] == sum(-(-area // 512) * 512 for area in areas)
        assert (found["topk_weights_type"], found["topo_type"], found["rank_num_per_server"]) == (0, 0, 2)


def mutated(rank: int) -> list[bool]:
    """One buffer, whose attributes are changed between layers as vllm-ascend does."""
    dense, int8 = layer("a16w16"), layer("a8w8-int")
    scene = Simulated("a3@9.2")
    buffer = scene.buffer(dense)
    first = scene.call(buffer, inputs(dense, rank))
    buffer.dispatch_quant_mode, buffer.dispatch_quant_out_dtype = 2, 258
    second = scene.call(buffer, inputs(int8, rank))
    expected = twin("none", dense, rank), twin("none", int8, rank)
    return [np.array_equal(got.y, want.y) for got, want in zip((first, second), expected, strict=True)]


def test_attributes_are_read_at_every_call(two_ranks: World) -> None:
    assert two_ranks.run(mutated, [(0,), (1,)]) == [[True, True]] * 2


def after_destroy(rank: int, name: str) -> bool:
    case = layer("a8w8-fp" if name.startswith("950") else "a16w16")
    scene = Simulated(name)
    buffer = scene.buffer(case)
    scene.call(buffer, inputs(case, rank))
    buffer.destroy()
    return bool(scene.call(buffer, inputs(case, rank)).y.any())


def test_destroy_does_nothing_on_a2_a3(two_ranks: World) -> None:
    assert two_ranks.run(after_destroy, [(0, "a2@9.1"), (1, "a2@9.1")]) == [True, True]


def test_destroy_frees_the_memory_of_950(two_ranks: World) -> None:
    for failure in two_ranks.outcomes(after_destroy, [(0, "950@9.2"), (1, "950@9.2")]):
        assert isinstance(failure, Failure)
        assert (failure.kind, "freed" in failure.message) == ("RuntimeError", True)
