"""The schemas of `show --json`, `check --json` and `convert --json`.

Stable as `plan --json`: a field keeps its name and meaning while `schema_version` stays; new fields may be added. Sizes
are bytes. `ShowReport.model_json_schema()` and so on give them as JSON schema.
"""

from pydantic import BaseModel, ConfigDict


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class PartReport(_Part):
    """The tensors of one part of a layer's experts.

    Attributes:
        name: what stands behind a projection's name, `weight_scale`; of fused tensors the name behind `experts.`.
        dtype: safetensors' words, with commas where they differ.
        tensors: their number.
        bytes: of all of them.
    """

    name: str
    dtype: str
    tensors: int
    bytes: int


class ScaleReport(_Part):
    """The scales of one part of a layer's experts.

    Attributes:
        part: its name.
        least, most: smallest and largest value; E8M0 bytes as the powers of two that they mean.
        least_in, most_in: the tensors that hold them.
    """

    part: str
    least: float
    most: float
    least_in: str
    most_in: str


class RunReport(_Part):
    """What a product runs a layer as.

    Attributes:
        profile: of the product.
        use_case: operator scenario, null where the layer cannot be planned.
        loss: of the conversion, rms of the weights' error over their rms, empty for an exact one.
        refused: the first rule that stands in the way, empty for none.
    """

    profile: str
    use_case: str | None
    loss: str
    refused: str


class SharedReport(_Part):
    """The shared expert of a layer: the name of its format, its width, its bytes."""

    format: str
    intermediate_hidden: int
    bytes: int


class LayerReport(_Part):
    """One MoE layer.

    Attributes:
        name: vLLM's prefix of its experts.
        layer: its number, -1 where it has none.
        draft: whether it belongs to a draft or MTP model.
        format, label: of the routed experts, for machines and for people.
        naming: `per expert`, `fused` or `per projection`.
        num_experts, hidden, intermediate_hidden: the model's own sizes.
        bytes, bytes_per_expert: of the routed experts, as they lie in the files.
        parts, scales: see there; no scales with --headers-only.
        shared: null where there is none.
        runs: see RunReport.
    """

    name: str
    layer: int
    draft: bool
    format: str
    label: str
    naming: str
    num_experts: int
    hidden: int
    intermediate_hidden: int
    bytes: int
    bytes_per_expert: int
    parts: tuple[PartReport, ...]
    scales: tuple[ScaleReport, ...] = ()
    shared: SharedReport | None = None
    runs: tuple[RunReport, ...] = ()


class ShowReport(_Part):
    """What `show CHECKPOINT --json` prints.

    Attributes:
        model, architecture: what was shown.
        files: number of safetensors files.
        bytes: of all tensors in them, the experts' and the others'.
        layers: with experts, as asked for.
        problems: what is malformed, each with file, tensor and remedy.
        notes: what was not looked at.
    """

    schema_version: int = 1
    model: str
    architecture: str
    files: int
    bytes: int
    layers: tuple[LayerReport, ...]
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class CheckedLayer(_Part):
    """Routed experts of a layer that were run, or its shared ones.

    Errors are rms over rms: of the dequantised operands against the reference's weights, and of the operator's rows
    against the reference's in float32.

    Attributes:
        name: vLLM's prefix of routed experts; what the files call a shared MLP.
        part: `routed` or `shared`.
        use_case: as they were run; a16w16 for shared experts on vLLM's own path, which are dequantised here.
        weight_rel_err, output_rel_err: of the whole layer.
        worst_expert: number of the expert whose output is worst.
        worst_token: row of the activations whose output is worst.
        layer, draft, format: as in LayerReport.
        worst_expert_rel_err: output error of that expert.
        worst_token_rel_err: output error of that row, in the expert that loses most of it.
        weight_bound, output_bound: what the formats explain.
        excess: sentences about what is beyond them; empty for a sound layer.
    """

    name: str
    part: str = "routed"
    use_case: str
    weight_rel_err: float
    output_rel_err: float
    worst_expert: int
    worst_token: int
    layer: int
    draft: bool
    format: str
    worst_expert_rel_err: float
    worst_token_rel_err: float
    weight_bound: float
    output_bound: float
    excess: tuple[str, ...] = ()


OWN = "the checkpoint's own numbers"
"""What a check is against where no original is given."""


class CheckReport(_Part):
    """What `check CHECKPOINT --json` prints.

    Attributes:
        model: what was checked.
        against: the reference: another checkpoint, or the numbers of this one.
        backend: what ran the operator.
        activations: what the rows were.
        holds: whether nothing is malformed and no error is beyond what the formats explain.
        layers: in order.
        problems, notes: as in ShowReport.
    """

    schema_version: int = 1
    model: str
    against: str
    backend: str
    activations: str
    holds: bool
    layers: tuple[CheckedLayer, ...]
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class PromptReport(_Part):
    """What a served checkpoint finds of a prompt's tokens, beside the model that it means.

    Attributes:
        number, prompt: which one; its beginning.
        tokens: that were compared, all but the first.
        rms: of the differences of their log-probabilities.
        worst_token, worst_difference: the place of the largest difference, and it: served minus meant.
        perplexity_served, perplexity_meant: of the prompt.
        other_best: tokens that only one of the two finds likeliest.
    """

    number: int
    prompt: str
    tokens: int
    rms: float
    worst_token: int
    worst_difference: float
    perplexity_served: float
    perplexity_meant: float
    other_best: int


class LogprobsReport(_Part):
    """What `check CHECKPOINT --logprobs PROMPTS --json` prints.

    Attributes:
        model: what was served.
        use_case: of its layers.
        prompts: in order.
        worst: number of the prompt with the largest rms.
    """

    schema_version: int = 1
    model: str
    use_case: str
    prompts: tuple[PromptReport, ...]
    worst: int


class ConvertedLayer(_Part):
    """Routed experts of a layer in the package's own format, or its shared ones.

    Attributes:
        name, layer, draft, format: as in LayerReport, of the source; what the files call a shared MLP.
        part: `routed` or `shared`.
        use_case: whose operands were written.
        hidden, intermediate_hidden: sizes of the operands, padding included.
        weight_rel_err: rms of what the conversion took from the weights over their rms; 0 for an exact one.
        bytes: of the operands.
        file: that holds them, the first one of several.
        files: all of them, one for each rank of the group that was asked for.
        resumed: whether an earlier run of the same command had written all of them.
    """

    name: str
    part: str = "routed"
    layer: int
    draft: bool
    format: str
    use_case: str
    hidden: int
    intermediate_hidden: int
    weight_rel_err: float
    bytes: int
    file: str
    files: tuple[str, ...]
    resumed: bool


class ConvertReport(_Part):
    """What `convert SOURCE TARGET --json` prints: both folders, bytes of all tensors written, the layers."""

    schema_version: int = 1
    source: str
    target: str
    bytes: int
    layers: tuple[ConvertedLayer, ...]
