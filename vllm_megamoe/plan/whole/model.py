"""A whole model as blocks of tensors: attention, norms, dense and shared MLPs, router, embeddings, vision, drafts.

The routed experts are counted from their facts; how they run on a rank is the plan's business (`LayerPlan`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vllm_megamoe.errors import ConfigError
from vllm_megamoe.plan.facts import MoeFacts
from vllm_megamoe.plan.read_config.defaults import with_defaults
from vllm_megamoe.plan.read_config.keys import Keys
from vllm_megamoe.plan.read_config.reader import architecture_of, num_layers_of, text_section
from vllm_megamoe.plan.read_config.where import hybrid_kinds
from vllm_megamoe.plan.whole.families import Body, body_of
from vllm_megamoe.plan.whole.tensors import Block, Cache, Part, Tensors


@dataclass(frozen=True, slots=True)
class WholeModel:
    """All that a model is made of.

    Attributes:
        blocks: its layers, draft layers last.
        before, after: what stands before the first and behind the last layer.
        experts: elements of the routed experts, over all layers.
        gaps: sentences about what is not counted, or only about right; empty where a test compares the count.
        vocabulary: rows of the output head.
        hidden: width of the model.
    """

    blocks: tuple[Block, ...]
    before: tuple[Tensors, ...]
    after: tuple[Tensors, ...]
    experts: int
    vocabulary: int
    hidden: int
    gaps: tuple[str, ...] = ()

    @property
    def parts(self) -> dict[Part, int]:
        """Elements of each part, draft layers included."""
        found: dict[Part, int] = {}
        inside = (tensors for block in self.blocks for tensors in block.tensors)
        for tensors in (*self.before, *inside, *self.after):
            found[tensors.part] = found.get(tensors.part, 0) + tensors.elements
        if self.experts:
            found["routed experts"] = self.experts
        return found

    @property
    def parameters(self) -> int:
        """All of them."""
        return sum(self.parts.values())

    @property
    def caches(self) -> tuple[Cache, ...]:
        """What all layers keep of a sequence."""
        return tuple(cache for block in self.blocks for cache in block.caches)


_UNKNOWN = "the attention of this architecture is not known here: the layers around the experts are not counted"


def read_whole(config: Mapping[str, Any], layers: Sequence[MoeFacts]) -> WholeModel:
    """Read a whole model.

    Args:
        config: config.json as a mapping.
        layers: its MoE layers that are loaded, as `read_model` gives them.

    Raises:
        ConfigError: a value is not what its key promises.
    """
    whole = with_defaults(config)
    section, count = text_section(whole), num_layers_of(whole)
    keys = Keys(section, count)
    if not count:
        # Nemotron-H may list its layers and leave their number out.
        keys = Keys(section, count := len(hybrid_kinds(keys)))
    named = section.get("architectures")
    inner = str(named[0]) if isinstance(named, list | tuple) and named else ""
    body = body_of(architecture_of(whole), inner)
    moe = {layer.index: layer for layer in layers if not layer.draft}
    drafts = [layer for layer in layers if layer.draft]
    gaps = [] if body.sure else ["the layers around the experts are read by common key names: about right"]
    blocks: list[Block] = []
    for number in range(count + len(drafts)):
        draft = number >= count
        try:
            block = (
                _draft(body, keys, number, drafts[number - count])
                if draft
                else _block(body, keys, number, moe.get(number))
            )
        except ConfigError as error:
            # Sizes around the experts decide nothing but memory: what is not understood is said, and left out.
            block, gaps = None, [f"the layers around the experts are not counted ({error})"]
        if block is None:
            gaps = gaps if gaps and "not counted" in gaps[0] else [_UNKNOWN]
        blocks.append(block or Block(number, (), draft=draft))
    hidden, vocabulary = keys.integer("hidden_size", "d_model"), keys.integer("vocab_size")
    tied = bool(section.get("tie_word_embeddings", whole.get("tie_word_embeddings", False)))
    table = Tensors("embeddings", vocabulary * hidden, "tensor", read=tied)
    head = () if tied else (Tensors("embeddings", vocabulary * hidden, "tensor"),)
    try:
        vision, seen = _vision(whole)
    except ConfigError as error:
        vision, seen = [], [f"the vision tower is not counted ({error})"]
    return WholeModel(
        tuple(blocks),
        (table, *vision),
        (Tensors("norms and the like", _final(keys, hidden)), *head),
        sum(_experts(body, layer) for layer in layers),
        vocabulary,
        hidden,
        (*gaps, *seen),
    )


_LENGTHS = ("max_position_embeddings", "max_sequence_length", "max_seq_len", "seq_length", "n_positions")
_ROPE = ("rope_scaling", "rope_parameters")
_UNSTRETCHED = ("su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling")
_SHORT = 2048
"""vLLM's own length for a config that says none (_get_and_verify_max_len)."""


def own_length(config: Mapping[str, Any]) -> int:
    """Tokens of the longest sequence that a model was made for."""
    section = text_section(with_defaults(config))
    return next((n for n in map(section.get, _LENGTHS) if isinstance(n, int) and n > 0), _SHORT)


def length_limit(config: Mapping[str, Any]) -> int | None:
    """Tokens beyond which vLLM surely rejects `--max-model-len` (0.30 and 0.32, _get_and_verify_max_len).

    None where it is not sure: the config says no length or a second one, or scales RoPE in a way that vLLM multiplies
    the length with (YaRN's kinds leave it: they say the longer length themselves).
    """
    section = text_section(with_defaults(config))
    sections = (section, config)
    if any(part.get("model_max_length") is not None for part in sections):
        return None
    if any(_stretches(part.get(key)) for part in sections for key in _ROPE):
        return None
    known = [n for n in map(section.get, _LENGTHS) if isinstance(n, int) and n > 0]
    return min(known, default=None)


def _stretches(rope: object) -> bool:
    """Whether a length is multiplied by a factor of RoPE, of one kind of layers at least."""
    if not isinstance(rope, Mapping):
        return False
    kind = str(rope.get("rope_type", rope.get("type", "default")))
    return (rope.get("factor") is not None and kind not in _UNSTRETCHED) or any(map(_stretches, rope.values()))


def _experts(body: Body, layer: MoeFacts) -> int:
    matrices = 2 if layer.activation.name.endswith("_no_mul") else 3
    one = matrices * layer.hidden * layer.intermediate_hidden
    bias = 2 * layer.intermediate_hidden + layer.hidden if body.expert_bias else 0
    return layer.num_experts * (one + bias)


def _final(keys: Keys, hidden: int) -> int:
    """The last norm; DeepSeek-V4 joins its streams there."""
    streams = keys.integer("hc_mult") if keys.has("compress_ratios") else 0
    return hidden + (streams * streams * hidden + streams + 1 if streams else 0)


def _block(body: Body, keys: Keys, number: int, moe: MoeFacts | None) -> Block | None:
    attention = body.attention(keys, number)
    if attention is None:
        return None
    tensors, caches = attention
    hidden = keys.integer("hidden_size", "d_model")
    norms = body.norms * hidden + (2 * hidden + 2 * hidden if keys.has("attn_res_block_size") else 0)
    found = [*tensors, Tensors("norms and the like", norms)]
    if moe is not None:
        found += _around_experts(body, keys, moe)
    if body.beside or (moe is None and _is_dense(keys, tensors, caches)):
        width = keys.integer(*body.dense) or keys.integer("intermediate_size", "ffn_hidden_size")
        found.append(Tensors("dense MLP", body.matrices * hidden * width, "tensor", "mlp.gate_proj"))
    return Block(number, tuple(found), tuple(caches))


def _is_dense(keys: Keys, tensors: Sequence[Tensors], caches: Sequence[Cache]) -> bool:
    """Whether a layer without experts has an MLP: all do, but in Nemotron-H, where a layer is one thing."""
    hybrid = keys.has("hybrid_override_pattern", "layers_block_type")
    return not hybrid or (not tensors and not caches)


def _around_experts(body: Body, keys: Keys, moe: MoeFacts) -> list[Tensors]:
    model_hidden = moe.model_hidden or moe.hidden
    router = moe.num_experts * model_hidden + (moe.num_experts if body.router_bias else 0)
    router += body.router_extra[0] * model_hidden + body.router_extra[1] * moe.num_experts
    found = [Tensors("router", router)]
    if model_hidden != moe.hidden:
        found.append(Tensors("router", 2 * model_hidden * moe.hidden, linear="mlp.routed_expert_down_proj"))
        if keys.values.get("latent_moe_use_norm"):
            found.append(Tensors("norms and the like", moe.hidden))
    shared = moe.shared
    if shared is not None:
        matrices = 2 if shared.activation.name.endswith("_no_mul") else 3
        size = matrices * shared.hidden * shared.intermediate_hidden
        found.append(Tensors("shared experts", size, "tensor", "mlp.shared_experts.gate_proj"))
        if shared.gated:
            found.append(Tensors("shared experts", shared.hidden))
    return found


def _draft(body: Body, keys: Keys, number: int, moe: MoeFacts) -> Block | None:
    """A draft (MTP) layer: a layer, the matrix that joins its two inputs, and three norms (deepseek_mtp).

    The token table and the output head are the target's.
    """
    block = _block(body, keys, number, moe)
    if block is None:
        return None
    hidden = keys.integer("hidden_size")
    extra = (Tensors("draft extras", 2 * hidden * hidden, linear="eh_proj"), Tensors("draft extras", 3 * hidden))
    return Block(number, (*block.tensors, *extra), block.caches, draft=True)


def _vision(config: Mapping[str, Any]) -> tuple[list[Tensors], list[str]]:
    """A vision tower by its layers and its projector; patches and positions are left out, hence about right."""
    section = config.get("vision_config")
    if not isinstance(section, Mapping):
        return [], []
    keys, text = Keys(section), Keys(text_section(config))
    depth = keys.integer("depth", "num_hidden_layers", "vt_num_hidden_layers")
    hidden = keys.integer("hidden_size", "vt_hidden_size")
    inner = keys.integer("intermediate_size", "vt_intermediate_size")
    out = keys.integer("out_hidden_size", "text_hidden_size", default=text.integer("hidden_size"))
    if not depth or not hidden or not inner:
        return [], ["the vision tower is not counted"]
    layers = depth * (4 * hidden * hidden + 2 * hidden * inner)
    merged = 4 * hidden
    projectors = 1 + len(keys.items("deepstack_visual_indexes"))
    tower = Tensors("vision", layers + projectors * merged * (merged + out), "tensor")
    return [tower], ["the vision tower is about right"]
