"""The experts of a layer that run alike, for a check: the routed ones, or the shared MLP as one expert of its width.

A shared MLP that the plan fuses runs as it is fused. On vLLM's own path it is dequantised here as the CPU lane does it,
so it runs as A16W16.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from vllm_megamoe.checkpoint.formats import BF16, ExpertsFormat
from vllm_megamoe.checkpoint.layers import DOWN, GATE, UP
from vllm_megamoe.checkpoint.reading import StoredLayer
from vllm_megamoe.checkpoint.stored.matrix import Matrix
from vllm_megamoe.cli.checkpoint.run_expert import Way
from vllm_megamoe.experts.canonical import Experts
from vllm_megamoe.plan.activation import plan_activation
from vllm_megamoe.plan.facts import MoeFacts
from vllm_megamoe.plan.layer_plan import LayerPlan
from vllm_megamoe.profiles.use_cases import UseCase

Part = Literal["routed", "shared"]


@dataclass(frozen=True, slots=True)
class Group:
    """See the module.

    Attributes:
        part: which of the layer's experts.
        layer: that they belong to.
        name: vLLM's prefix of routed experts, the files' of a shared MLP.
        form: as the checkpoint stores them.
        hidden: width of their rows.
        count: of experts; 1 for a shared MLP.
        stored: the layer on disk.
        way: how they run.
    """

    part: Part
    layer: MoeFacts
    name: str
    form: ExpertsFormat
    hidden: int
    count: int
    stored: StoredLayer
    way: Way

    def expert(self, number: int) -> Experts:
        """One of them.

        Raises:
            CheckpointError: its tensors are not what the format says.
        """
        return self.stored.expert(number) if self.part == "routed" else self.stored.shared_expert()

    def matrices(self, number: int, of: StoredLayer | None = None) -> dict[str, Matrix]:
        """Its projections, of this checkpoint or of another one's same layer.

        Raises:
            CheckpointError: as `expert`.
        """
        stored = of or self.stored
        return stored.matrices(number) if self.part == "routed" else stored.shared_matrices()

    def called(self, number: int, projection: str) -> str:
        """A projection's name in the files."""
        return self.stored.tensors.prefix_of(number if self.part == "routed" else None, projection)

    def label(self, number: int) -> str:
        """One of them, in words."""
        return f"expert {number}" if self.part == "routed" else "the shared experts"


def groups_of(layer: MoeFacts, plan: LayerPlan, stored: StoredLayer) -> Iterator[Group | str]:
    """What there is to run of a layer, or a sentence about what is not looked at."""
    sizes = plan.padding
    way = Way(plan.use_case, sizes.hidden, sizes.intermediate_hidden, plan.activation, exact=not plan.loss)
    form, count = layer.experts_format, layer.num_experts
    yield Group("routed", layer, layer.name, form, layer.hidden, count, stored, way)
    shared = layer.shared
    if shared is None:
        return
    activation = plan_activation(shared.activation)
    if stored.tensors.shared.keys() != {GATE, UP, DOWN} or not shared.experts_format.facts.loads:
        yield f"{layer.name}: the names or the format of its shared experts are not known here; they were not run."
    elif activation is None:
        named = f"the activation of its shared experts, {shared.activation.name!r},"
        yield f"{layer.name}: {named} is none of the operator's; they were not run."
    else:
        fused = plan.shared.use_case if plan.shared.mode == "fused" else None
        form = shared.experts_format
        # Fused ones keep every number, unless they go the routed experts' lossy way.
        exact = form == BF16 if fused is None else not (plan.loss and form == layer.experts_format)
        way = Way(fused or UseCase.A16W16, shared.hidden, shared.intermediate_hidden, activation, exact)
        yield Group("shared", layer, stored.tensors.shared_module, form, shared.hidden, 1, stored, way)
