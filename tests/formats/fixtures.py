"""Every folder of ../shared/fixtures as a row: its format, what its experts are, and what a loader must answer.

`format` is the stable name under which this package knows a format; `layout` the reading that reads it.
"""

from dataclasses import dataclass

from formats.kinds import KINDS, Kind


@dataclass(frozen=True)
class Fixture:
    """One fixture.

    Attributes:
        folder: below ../shared/fixtures, without the trailing __s0.
        format: of the routed experts, all MoE layers alike.
        kind: of their numbers, a key of KINDS.
        layers: the MoE layers; the last ones may be draft layers, see `draft`.
        shared: format of the shared expert, or None.
        frobenius: lowest and highest relative Frobenius error of an expert's projection against its original, as
            fixtures/README.md and the manifest state it.
        refused: why no use case takes it, or empty.
        exact_here: a use case that is exact for this file although it is lossy for the kind (see its condition).
        draft: layers that only a draft (MTP) model loads.
    """

    folder: str
    format: str
    kind: str
    frobenius: tuple[float, float]
    layers: tuple[int, ...] = (0, 1)
    shared: str | None = None
    shared_kind: str | None = None
    refused: str = ""
    exact_here: str = ""
    draft: tuple[int, ...] = ()

    @property
    def base(self) -> str:
        """Folder of the BF16 original."""
        return self.folder.split("__")[0] + "__base__bf16"

    @property
    def facts(self) -> Kind:
        """Exact and lossy use cases."""
        return KINDS[self.kind]

    @property
    def answer(self) -> str:
        """`exact`, `consent` or `refused`: what a loader must answer without consent under profile none."""
        if self.refused:
            return "refused"
        return "exact" if self.exact_here else self.facts.answer

    @property
    def auto(self) -> str:
        """The use case that `use_case: auto` takes under a profile that has all; empty without an exact one."""
        return self.exact_here or (self.facts.exact[0] if self.facts.exact else "")


_NONE = (0.0, 0.0)
_INT8 = (0.009, 0.011)
_INT4 = (0.13, 0.15)
_MX8 = (0.026, 0.0275)
_MX8_FLOOR = (0.0285, 0.0315)
_MX4 = (0.110, 0.114)
_FP8 = (0.025, 0.0275)
_BIAS = "its experts carry biases (gate_up_proj_bias, down_proj_bias), and the operator adds none"

FIXTURES = (
    Fixture("deepseek_v3__base__bf16", "bf16", "bf16", _NONE, (1,), "bf16", "bf16"),
    Fixture(
        "deepseek_v3__msmodelslim__w4a8_mxfp",
        "msmodelslim-w4a8-mxfp",
        "mxfp4",
        _MX4,
        (1,),
        "msmodelslim-w8a8-mxfp8",
        "mxfp8",
    ),
    Fixture(
        "deepseek_v3__msmodelslim__w8a8_dynamic",
        "msmodelslim-w8a8-dynamic",
        "int8",
        _INT8,
        (1,),
        "msmodelslim-w8a8-dynamic",
        "int8",
    ),
    Fixture(
        "deepseek_v3__transformers__fp8_block128_ue8m0",
        "fp8-block-ue8m0",
        "fp8-block-ue8m0",
        _FP8,
        (1,),
        "fp8-block-ue8m0",
        "fp8-block-ue8m0",
    ),
    Fixture("deepseek_v3_mtp__base__bf16", "bf16", "bf16", _NONE, (1, 2), "bf16", "bf16", draft=(2,)),
    Fixture(
        "deepseek_v3_mtp__msmodelslim__w4a8_dynamic",
        "msmodelslim-w4a8-dynamic",
        "int4",
        _INT4,
        (1, 2),
        "msmodelslim-w8a8-dynamic",
        "int8",
        draft=(2,),
    ),
    Fixture("gpt_oss__base__bf16", "bf16", "bf16", _NONE, refused=_BIAS),
    Fixture("gpt_oss__openai-layout__mxfp4_blocks", "gpt-oss-mxfp4", "mxfp4", (0.14, 0.153), refused=_BIAS),
    Fixture("minimax_m2__base__bf16", "bf16", "bf16", _NONE),
    Fixture("minimax_m2__llmcompressor-mf__MXFP8", "compressed-tensors-mxfp8", "mxfp8", _MX8),
    Fixture("mixtral__base__bf16", "bf16", "bf16", _NONE),
    Fixture("mixtral__llmcompressor-mf__W8A8", "compressed-tensors-w8a8", "int8", _INT8),
    Fixture("qwen2_moe__base__bf16", "bf16", "bf16", _NONE, shared="bf16", shared_kind="bf16"),
    Fixture(
        "qwen2_moe__msmodelslim__w8a8_dynamic",
        "msmodelslim-w8a8-dynamic",
        "int8",
        _INT8,
        shared="msmodelslim-w8a8-dynamic",
        shared_kind="int8",
    ),
    Fixture("qwen3_moe__autoround__W4A16_auto_gptq", "gptq-int4-group", "int4-group", (0.12, 0.128)),
    Fixture("qwen3_moe__base__bf16", "bf16", "bf16", _NONE),
    Fixture("qwen3_moe__llmcompressor__FP8_BLOCK", "compressed-tensors-fp8-block", "fp8-block", _FP8),
    Fixture("qwen3_moe__llmcompressor__MXFP4", "compressed-tensors-mxfp4", "mxfp4", _MX4),
    Fixture("qwen3_moe__llmcompressor__MXFP8", "compressed-tensors-mxfp8", "mxfp8", _MX8),
    Fixture("qwen3_moe__llmcompressor__NVFP4", "compressed-tensors-nvfp4", "nvfp4", (0.091, 0.097)),
    Fixture("qwen3_moe__llmcompressor__W4A16", "compressed-tensors-w4a16-group", "int4-group", (0.129, 0.138)),
    Fixture("qwen3_moe__llmcompressor__W4A8_channel", "compressed-tensors-w4a8", "int4", (0.148, 0.165)),
    Fixture("qwen3_moe__llmcompressor__W8A8", "compressed-tensors-w8a8", "int8", _INT8),
    Fixture("qwen3_moe__llmcompressor__mixed_attnW8A8_expW4A8", "compressed-tensors-w4a8", "int4", (0.148, 0.165)),
    Fixture("qwen3_moe__modelopt__MXFP8", "modelopt-mxfp8", "mxfp8", _MX8),
    Fixture("qwen3_moe__msmodelslim__v0_qwen3-30b-a3b-w8a8", "msmodelslim-w8a8-dynamic", "int8", _INT8),
    Fixture("qwen3_moe__msmodelslim__w4a4_mxfp4", "msmodelslim-w4a4-mxfp4", "mxfp4-a4", _MX4),
    Fixture("qwen3_moe__msmodelslim__w4a8_dynamic", "msmodelslim-w4a8-dynamic", "int4", _INT4),
    Fixture(
        "qwen3_moe__msmodelslim__w4a8_dynamic_pergroup",
        "msmodelslim-w4a8-dynamic-group",
        "int4-two-stage",
        (0.117, 0.127),
        exact_here="a8w8-int",
    ),
    Fixture("qwen3_moe__msmodelslim__w4a8_mxfp", "msmodelslim-w4a8-mxfp", "mxfp4", _MX4),
    Fixture("qwen3_moe__msmodelslim__w8a8_dynamic", "msmodelslim-w8a8-dynamic", "int8", _INT8),
    Fixture("qwen3_moe__msmodelslim__w8a8_mxfp8", "msmodelslim-w8a8-mxfp8", "mxfp8", _MX8_FLOOR),
    Fixture("qwen3_moe__transformers__fp8_block128", "fp8-block", "fp8-block", _FP8),
    Fixture("qwen3_moe_ns__base__bf16", "bf16", "bf16", _NONE, (0,)),
    Fixture("qwen3_moe_ns__llmcompressor__MXFP4", "compressed-tensors-mxfp4", "mxfp4", _MX4, (0,)),
    Fixture("qwen3_moe_ns__llmcompressor__W8A8", "compressed-tensors-w8a8", "int8", _INT8, (0,)),
    Fixture("qwen3_moe_ns__msmodelslim__w4a8_dynamic", "msmodelslim-w4a8-dynamic", "int4", _INT4, (0,)),
)
"""All of them; a test holds the list against the folder."""

BY_FOLDER = {fixture.folder: fixture for fixture in FIXTURES}
