"""A shared MLP whose linears have collected its tensors: given away as experts of the routed width, and again later."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from vllm_megamoe.checkpoint.stored.matrix import Matrix, join_expert, split_rows
from vllm_megamoe.errors import CheckpointError, ConfigError
from vllm_megamoe.experts.canonical import Experts
from vllm_megamoe.experts.convert import cut_expert

REMEDY = 'Set "fuse_shared_experts": "off" in the megamoe options.'


def give_away(mlp: "SharedMlp") -> Callable[[], None]:
    """Give the MLP to its `put`, now and whenever it is loaded again; its linears' methods are `Collected`.

    Returns:
        What to call before a step: it raises CheckpointError where the MLP was loaded again in part.

    Raises:
        CheckpointError: its projections are stored in different ways, or cannot be cut to the routed width.
    """
    mlp.give()
    for linear in mlp.linears:
        linear.quant_method.collect_again(linear, mlp.arrived)
    return mlp.check


def take_factor(runner: Any, fold_scaling: float) -> None:
    """Keep a runner from multiplying the output by its routed scaling factor, which is on the router weights instead.

    Raises:
        ConfigError: the factor is not the one that the plan moved there.
    """
    if runner.routed_scaling_factor != fold_scaling:
        raise ConfigError(
            f"{runner.layer_name}: vLLM's runner multiplies the output by {runner.routed_scaling_factor:g}, the plan "
            f"expected {fold_scaling:g} to move onto the router weights. {REMEDY}"
        )
    runner.routed_scaling_factor = 1.0


@dataclass(slots=True)
class SharedMlp:
    """The linears, gate and up rows first, and where their numbers go."""

    name: str
    linears: Sequence[Any]
    pieces: int
    put: Callable[[Experts], None]
    _torn: CheckpointError | None = None

    def give(self) -> None:
        """Hand on what the linears have collected."""
        first, second = (_taken(linear) for linear in self.linears)
        if len(first) == 1:
            # One tensor in the checkpoint too, gate rows first.
            first = split_rows(first[0], 2)
        gate, up = first
        self.put(cut_expert(join_expert(gate, up, second[0], self.name), self.pieces))
        self._torn = None

    def arrived(self) -> None:
        """A projection has come again; hand on the MLP with its last one."""
        if not any(linear.quant_method.missing() for linear in self.linears):
            self.give()

    def check(self) -> None:
        """See `take_shared`. What came of an MLP in part is dropped; it is named until all of it has come."""
        methods = [linear.quant_method for linear in self.linears]
        if any(method.begun for method in methods):
            for method in methods:
                method.finish()
        if any(method.begun for method in methods):
            missing = [name for method in methods for name in method.missing()]
            self._torn = CheckpointError(
                f"{self.name}: the shared experts were loaded again in part: {', '.join(missing)} did not come; "
                "expected all three projections before the next step. Load them again as a whole."
            )
            for method in methods:
                method.drop()
        if self._torn is not None:
            raise self._torn


def _taken(linear: Any) -> list[Matrix]:
    kept: list[Matrix] = linear.quant_method.taken(linear)
    return kept
