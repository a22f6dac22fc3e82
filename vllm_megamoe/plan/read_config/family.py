"""A family of models: how the facts of its MoE layers stand in config.json.

A new family is one `Family` in `families`; every field has the value that most families share. A model that no table
knows gets rules by the key names that most configs share.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from vllm_megamoe.plan.facts import SplitsRows
from vllm_megamoe.plan.read_config.activations import ActivationOf, clamped, hidden_act
from vllm_megamoe.plan.read_config.keys import Keys
from vllm_megamoe.plan.read_config.where import (
    Where,
    after_dense,
    after_dense_only,
    by_enumeration,
    by_pattern,
    by_step,
    by_type,
)

Names = tuple[str, ...]
"""Alternative names of one value; the first that a config has counts."""

NUM_LAYERS: Names = ("num_hidden_layers", "num_layers", "n_layers")
NUM_EXPERTS: Names = ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts", "num_moe_experts")
TOPK: Names = (
    "num_experts_per_tok",
    "num_experts_per_token",
    "moe_topk",
    "moe_top_k",
    "moe_k",
    "top_k_experts",
    "num_selected_experts",
)
INTERMEDIATE: Names = (
    "moe_intermediate_size",
    "expert_hidden_dim",
    "expert_ffn_hidden_size",
    "intermediate_size",
    "ffn_hidden_size",
)
NUM_SHARED: Names = ("n_shared_experts", "num_shared_experts", "num_shared_expert", "moe_num_shared_experts")
NUM_DRAFTS: Names = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers")


@dataclass(frozen=True, slots=True)
class SharedRule:
    """Where the config says how wide the shared experts are: a number of experts times a width.

    Attributes:
        count: names of the number; none at all means one MLP. No shared experts where it is 0 or absent.
        width: names of one expert's width; none at all means that of a routed expert.
        module: the MLP's name beside the routed experts, as vLLM calls it.
        gated: whether a sigmoid gate multiplies its output.
        activation: None where it is that of the routed experts.
    """

    count: Names = ()
    width: Names = ()
    module: str = "shared_experts"
    gated: bool = False
    activation: ActivationOf | None = None


@dataclass(frozen=True, slots=True)
class DraftRule:
    """The MTP layers that a checkpoint brings beside its decoder.

    Attributes:
        count: names of their number.
        name: vLLM's prefix of the experts, with `{layer}`; None for the decoder's own pattern.
        after_decoder: whether their numbers follow the decoder's, or start at 0 again.
        default: their number where the config is silent.
    """

    count: Names = NUM_DRAFTS
    name: str | None = None
    after_decoder: bool = True
    default: int = 0


@dataclass(frozen=True, slots=True)
class Family:
    """How one family's config is read.

    Attributes:
        architectures: entries of config.json's `architectures` that belong to it.
        name: vLLM's prefix of the routed experts, with `{layer}`.
        section: where the config keeps what it says of experts, empty for beside everything else.
        where: which layers are MoE layers.
        num_layers: names of the number of decoder layers.
        num_experts, topk, intermediate: names of those values.
        latent: names of the width that the routed experts see, where it is not the model's.
        activation: of the routed experts.
        shared: None where vLLM's MoE layer holds no shared experts.
        scaling: names of the factor on the routed sum.
        default_scaling: that factor where the config is silent.
        scale_on_output: whether vLLM's model code multiplies the output by it, not the router weights.
        has_bias, gate_up_interleaved, router_weight_on_input: as in MoeFacts.
        drafts: None where no draft layer of this family has experts.
        splits_rows: whether vLLM's MoE block splits its rows over tensor-parallel ranks: the block's file calls
            `sequence_parallel_chunk`, or takes rows that are split already (`use_sequence_parallel_moe`).
    """

    architectures: Names
    name: str = "model.layers.{layer}.mlp.experts"
    section: str = ""
    where: Where = after_dense_only
    num_layers: Names = NUM_LAYERS
    num_experts: Names = NUM_EXPERTS
    topk: Names = TOPK
    intermediate: Names = INTERMEDIATE
    latent: Names = ()
    activation: ActivationOf = hidden_act
    shared: SharedRule | None = None
    scaling: Names = ("routed_scaling_factor",)
    default_scaling: float = 1.0
    scale_on_output: bool = False
    has_bias: bool = False
    gate_up_interleaved: bool = False
    router_weight_on_input: bool = False
    drafts: DraftRule | None = None
    splits_rows: SplitsRows = "never"


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
    return Family(
        (),
        section=_section(keys),
        where=_where,
        activation=clamped,
        shared=shared,
        scaling=_SCALING,
        splits_rows="unknown",
    )


def _section(keys: Keys) -> str:
    """The section that names experts where nothing beside it does, empty for none (`ffn_config` of some)."""
    if keys.has(*NUM_EXPERTS):
        return ""
    sections = ((name, value) for name, value in keys.values.items() if isinstance(value, Mapping))
    return next((name for name, value in sections if name.endswith("_config") and Keys(value).has(*NUM_EXPERTS)), "")
