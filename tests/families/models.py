"""The tiny models of the families, and what their tests ask of each."""

from dataclasses import dataclass, fields

from vllm_megamoe.testing.tiny_models import TINY_MODELS, VOCABULARY, TinyModel

__all__ = ["FAMILIES", "VOCABULARY", "Family"]


@dataclass(frozen=True)
class Family(TinyModel):
    """One family of models.

    Attributes:
        every_run: whether `make test` serves it; the others wait for `make test-full`.
    """

    every_run: bool = True

    @property
    def modes(self) -> list[str]:
        """Engines with the flag: shared experts where the plan puts them, and `apart`, on vLLM's own path."""
        return ["planned", "apart"] if self.shared and not self.gated else ["planned"]

    def fused(self, mode: str) -> bool:
        """Whether the operator's call holds the shared experts: it adds them unweighted, so a gate forbids it."""
        return self.shared and not self.gated and mode == "planned"

    def damages(self, mode: str, layout: str) -> list[str]:
        """What a comparison of this family must be able to see (see damage.py)."""
        kinds = ["scaled"]
        kinds += ["shared dropped", "shared twice"] if self.shared else []
        kinds += ["gate dropped"] if self.gated else []
        kinds += ["factor dropped", "factor twice"] if self.scaled else []
        if layout == "tensor parallel":
            kinds += ["reduced twice"]
            kinds += ["shared not reduced"] if self.shared and not self.fused(mode) else []
        # A compiled model calls what it was traced with, whatever is put in its place.
        return [] if layout == "compiled" else kinds


_LATER = ("ernie4_5_moe", "olmoe", "glm4_moe_lite", "exaone_moe")

FAMILIES: dict[str, Family] = {
    name: Family(**{field.name: getattr(model, field.name) for field in fields(model)}, every_run=name not in _LATER)
    for name, model in TINY_MODELS.items()
}
