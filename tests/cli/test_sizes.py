"""Memory of a rank, by hand."""

from vllm_megamoe.cli.report.groups import memory_of
from vllm_megamoe.plan.facts import EngineFacts, MoeFacts
from vllm_megamoe.plan.options import Options
from vllm_megamoe.plan.plan import draft_plan, plan_of


def test_a_stage_is_taken_for_the_one_with_the_largest_layers() -> None:
    """Which layers share a stage is vLLM's choice: of three layers over two stages, the two largest at worst."""
    layers = [MoeFacts(f"layers.{i}.experts", 4, 2, 64, width) for i, width in enumerate((32, 128, 64))]
    found = memory_of(plan_of(draft_plan(EngineFacts("bfloat16", pipeline_parallel=2), layers, Options())))
    assert found is not None
    # Four experts of gate, up and down, 64 wide, in two bytes.
    assert found.weights == 4 * 3 * 64 * (128 + 64) * 2
