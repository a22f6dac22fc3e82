"""A model that no table knows, read by the key names that most configs share."""

from vllm_megamoe.plan.read_config.activations import clamped
from vllm_megamoe.plan.read_config.family import NUM_SHARED, Family, SharedRule
from vllm_megamoe.plan.read_config.keys import Keys
from vllm_megamoe.plan.read_config.where import Where, after_dense, by_enumeration, by_pattern, by_step, by_type

# The first key that a config has says how its MoE layers are marked.
_MARKS: tuple[tuple[str, Where], ...] = (
    ("mlp_layer_types", by_type),
    ("moe_layers_enum", by_enumeration),
    ("layers_block_type", by_pattern),
    ("hybrid_override_pattern", by_pattern),
    ("decoder_sparse_step", by_step),
    ("mlp_only_layers", by_step),
)

_SCALING = ("routed_scaling_factor", "router_scaling_factor", "route_scale", "moe_router_scaling_factor")


def _where(keys: Keys, layer: int) -> bool:
    rule = next((rule for key, rule in _MARKS if keys.has(key)), after_dense)
    return rule(keys, layer)


def generic(keys: Keys) -> Family:
    """Rules for a config of an unknown architecture."""
    one_mlp = keys.has("shared_expert_intermediate_size")
    width = ("shared_expert_intermediate_size", "moe_shared_expert_intermediate_size", "shared_intermediate_size")
    # The first of these names is Qwen's, whose shared MLP stands behind a gate.
    shared = SharedRule(width=width[:1], gated=True) if one_mlp else SharedRule(count=NUM_SHARED, width=width[1:])
    return Family((), where=_where, activation=clamped, shared=shared, scaling=_SCALING)
