"""The plan: every decision about a layer, taken once from facts and options, before a weight is read."""

from dataclasses import dataclass

from vllm_megamoe.plan.facts import EngineFacts, MoeFacts, Tokens
from vllm_megamoe.plan.options import Options
from vllm_megamoe.plan.rules import check
from vllm_megamoe.profiles.use_cases import UseCase


@dataclass(frozen=True, slots=True)
class LayerPlan:
    """How one layer runs.

    Attributes:
        facts: the layer it was made for.
        use_case: the operator scenario.
        activation, activation_clamp: what the call passes; always explicit.
        ep_size: ranks of the communicator.
        experts_per_rank: routed experts that a rank holds.
        tokens: whether the rows are replicated over the ranks, and so are split before the call.
        num_max_tokens_per_rank: rows that one call may bring.
        profile, backend: as chosen.
    """

    facts: MoeFacts
    use_case: UseCase
    activation: str
    activation_clamp: float | None
    ep_size: int
    experts_per_rank: int
    tokens: Tokens
    num_max_tokens_per_rank: int
    profile: str
    backend: str


def plan_layer(engine: EngineFacts, layer: MoeFacts, options: Options) -> LayerPlan:
    """Decide for one layer.

    Raises:
        ConfigError: with every violated rule and its remedy.
    """
    check(engine, [layer], options)
    ranks = engine.ep_size
    # Rows that tensor-parallel ranks share are split over them, so each call brings a share of the step's rows.
    shares = engine.tensor_parallel if engine.expert_parallel else 1
    return LayerPlan(
        facts=layer,
        use_case=UseCase.A16W16 if options.use_case == "auto" else UseCase(options.use_case),
        activation="swiglu",
        activation_clamp=layer.activation.limit or None,
        ep_size=ranks,
        experts_per_rank=layer.num_experts // ranks,
        tokens=engine.tokens,
        num_max_tokens_per_rank=-(-engine.max_num_batched_tokens // shares),
        profile=options.chosen_profile,
        backend=options.backend,
    )
