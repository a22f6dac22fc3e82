"""A recipe says what a generated checkpoint is, and what a loader must answer to it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from formats.generate.families import QWEN3, Family
from formats.generate.fused import LayerWriter
from formats.kinds import KINDS, Kind
from torch import Tensor

from vllm_megamoe.testing.formats.address import Shape
from vllm_megamoe.testing.formats.scheme import Scheme


@dataclass(frozen=True)
class Recipe:
    """One kind of checkpoint.

    Attributes:
        name: of the recipe, unique.
        format: stable name of the routed experts' format.
        scheme: of the routed experts; `mixed` gives layers of other schemes.
        tool: msmodelslim, hf (one file, no index) or hf-sharded (two files and an index).
        section: quantization_config of config.json.
        shared: scheme of the shared expert, for families that have one.
        draft: scheme of the draft layer's routed experts; None writes no draft layer.
        mixed: ordinal of a layer -> its scheme.
        unlisted: ordinals of BF16 layers that msModelSlim's description leaves out.
        fused: how all experts come into one tensor, for families without a name per expert.
        biased: experts carry biases.
        refused: why no use case takes it.
        needs: what a loader has to answer beyond the kind's facts, in words.
        exact_here: a use case that holds these numbers exactly although the kind's are not.
        description: further keys of quant_model_description.json.
        more: further tensors beside the experts, name -> tensor, with their described type.
        side: further JSON files.
    """

    name: str
    format: str
    scheme: Scheme
    tool: str = "hf"
    section: Mapping[str, Any] | None = None
    family: Family = QWEN3
    shape: Shape = field(default_factory=Shape)
    shared: Scheme | None = None
    draft: Scheme | None = None
    mixed: Mapping[int, Scheme] = field(default_factory=dict)
    unlisted: tuple[int, ...] = ()
    fused: LayerWriter | None = None
    biased: bool = False
    refused: str = ""
    needs: str = ""
    exact_here: str = ""
    description: Mapping[str, Any] = field(default_factory=dict)
    more: Callable[[int], Mapping[str, tuple[Tensor, str]]] | None = None
    side: Mapping[str, Any] = field(default_factory=dict)
    layout: str = ""

    @property
    def kind(self) -> str:
        """Of the routed experts' numbers, a key of KINDS."""
        return self.scheme.kind

    @property
    def facts(self) -> Kind:
        """Exact and lossy use cases of the routed experts."""
        return KINDS[self.kind]

    @property
    def answer(self) -> str:
        """`exact`, `consent` or `refused`: what a loader must answer without consent under profile none."""
        if self.refused:
            return "refused"
        kinds = [self.scheme.kind, *(scheme.kind for scheme in self.mixed.values())]
        exact = self.exact_here or all(KINDS[kind].exact for kind in kinds)
        return "exact" if exact else "consent"

    @property
    def auto(self) -> dict[str, str]:
        """Kind of a decoder layer's numbers -> the use case that `use_case: auto` takes under a profile that has all.

        a4w4-fp is for all layers of a communicator or for none: beside another kind its weights go to a8w4-fp.
        """
        kinds = {self.scheme.kind, *(scheme.kind for scheme in self.mixed.values())}
        if self.answer != "exact":
            return {}
        if self.exact_here:
            return {self.kind: self.exact_here}
        chosen = {kind: KINDS[kind].exact[0] for kind in kinds}
        if len(set(chosen.values())) > 1 and "mxfp4-a4" in chosen:
            chosen["mxfp4-a4"] = "a8w4-fp"
        return chosen
