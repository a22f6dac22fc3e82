"""The engine's plan as its processes carry it, and how a running layer finds its own in it.

The plan is made once, in the config stage of the process that the user started, from config files; it travels to engine
core and workers on the quantisation config. A layer that vLLM builds there looks up its plan and shows what it is: both
must say the same, or the plan was made for another model than the one that runs.

Where no table knows the architecture and nobody taught it, config.json was read by guess. There the running layer
counts: one that the plan lacks or has wrong is planned as it stands, and the log says so.
"""

import functools
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from vllm_megamoe.checkpoint.formats import ExpertsFormat
from vllm_megamoe.errors import ConfigError
from vllm_megamoe.plan.facts import ActivationFacts, EngineFacts, MoeFacts, SharedFacts
from vllm_megamoe.plan.layer_plan import LayerPlan, Plan
from vllm_megamoe.plan.plan import plan_layer
from vllm_megamoe.plan.read_config.reader import number_in

logger = logging.getLogger(__name__)

_NOT_DECIDING = {"name", "index", "model_hidden", "draft", "slots"}
"""Fields that name a layer or are shown; whoever teaches a model may leave them at their defaults. Slots are the user's
choice, which the plan alone knows."""

_SHOWN_BY_RUNNER = {"shared", "routed_scaling_factor", "scale_on_output"}
"""Fields that a layer shows only once vLLM has built the runner around it."""

_SHOWN_BY_LAYER = {"skips_reduction"}
"""Facts of the model's code that no config.json has; the plan takes the layer's word."""

_ROWS = {"splits_rows", "sequence_parallel"}
"""Whether rows are split over the tensor-parallel ranks: a family's word and the engine's, or a layer's."""


@dataclass(frozen=True, slots=True)
class LiveFacts:
    """What a layer shows in the running engine.

    Attributes:
        engine: as the layer's process sees it, with the layer's own word on sequence parallelism.
        layer: facts of the layer.
        whole: whether the runner around it is built, so that shared experts and a factor on the output are seen too.
        draft: whether it belongs to a draft or MTP model.
    """

    engine: EngineFacts
    layer: MoeFacts
    whole: bool
    draft: bool


@dataclass(frozen=True, slots=True)
class Carried:
    """An engine's plan, and how sure its reading was.

    Attributes:
        plan: of every MoE layer that is loaded, draft layers last.
        architecture: that config.json names.
        known: whether a table or a registered function reads this architecture.
        num_layers: decoder layers, 0 where the config does not say; a draft model of its own may be numbered on from
            there.
        own_drafts: whether the draft layers come from another model's config, whose names vLLM changes.
        shown: whether the user has seen it, and the platform has had its word.
        parts: name of a layer -> projection -> parts of an expert that its files have; None where nobody has looked.
        metrics: folder that metrics are written to, empty for none; each host's own.
    """

    plan: Plan
    architecture: str = ""
    known: bool = False
    num_layers: int = 0
    own_drafts: bool = False
    shown: bool = False
    parts: Mapping[str, Mapping[str, frozenset[str]]] | None = None
    metrics: str = field(default="", compare=False)

    def plan_of(self, live: LiveFacts) -> LayerPlan:
        """The plan of a running layer.

        Raises:
            ConfigError: the plan has no such layer, or one that differs from what runs; for an unsure reading: with
                every rule that the layer as it runs violates.
        """
        found = self._find(live)
        said = [self._absent(live)] if found is None else [*_differences(found, self.plan.engine, live)]
        sure = self.known and not (live.draft and self.own_drafts)
        if said and sure:
            lines = [f"{live.layer.name}: the running layer is not the one that was planned:", *_listed(said)]
            raise ConfigError("\n".join([*lines, self._remedy()]))
        if said or found is None:
            whose = "The draft model" if live.draft else self.architecture or "This architecture"
            _tell(live.layer.name, whose, "; ".join(said))
            slots = () if found is None else found.facts.slots
            return plan_layer(live.engine, replace(live.layer, slots=slots), self.plan.options)
        self._check_shown(found, live)
        return found

    def _find(self, live: LiveFacts) -> LayerPlan | None:
        """By name, else the only one of that number: vLLM leaves out or adds a prefix for some models."""
        name = live.layer.name
        # A draft model of its own may repeat the names of the target's layers.
        ours = [plan for plan in self.plan.layers if plan.facts.draft is live.draft]
        for plan in (*ours, *self.plan.layers):
            if plan.facts.name == name:
                return plan
        number = number_in(name)
        numbers = {number, number - self.num_layers} if live.draft and self.own_drafts else {number}
        numbered = [plan for plan in ours if number_in(plan.facts.name) in numbers - {-1}]
        return numbered[0] if len(numbered) == 1 else None

    def _absent(self, live: LiveFacts) -> str:
        layers = self.plan.layers
        such = f", such as {layers[0].facts.name}" if layers else ""
        kind = "draft layer" if live.draft else "layer"
        return f"no {kind} of this name or number among the {len(layers)} that were planned{such}"

    def _remedy(self) -> str:
        teach = f"register_model_facts({self.architecture!r}, fn)"
        return (
            f"The plan was made from config.json of {self.architecture or 'an unnamed architecture'}; expected the "
            f"same in both. Teach the layer's facts with {teach}, or correct the function that is registered so, or "
            "report this model."
        )

    def _check_shown(self, found: LayerPlan, live: LiveFacts) -> None:
        """Rules about what no config shows, now that the layer shows it.

        Raises:
            ConfigError: one is violated, or the plan would be another one.
        """
        engine, facts = self.plan.engine, found.facts
        if engine.splits_rows(facts) is None and _both(engine):
            engine = replace(engine, sequence_parallel=live.engine.sequence_parallel)
        if live.layer.skips_reduction:
            facts = replace(facts, skips_reduction=True)
        if (engine, facts) == (self.plan.engine, found.facts):
            return
        again = replace(plan_layer(engine, facts, self.plan.options, found.agreed), facts=found.facts)
        if again != found:
            raise ConfigError(
                f"{live.layer.name}: with what the running layer shows, the plan would be {again}; it was made as "
                f"{found}; expected the same. Report this model."
            )


@functools.cache
def _tell(layer: str, whose: str, said: str) -> None:
    """Once, though a layer is looked at without its runner and with it."""
    logger.warning(
        "megamoe: %s: %s is read by guess, and the running layer differs: %s. It is planned as it runs. Teach the "
        "model with register_model_facts to have it in the plan at start-up.",
        layer,
        whose,
        said,
    )


def _listed(said: list[str]) -> list[str]:
    return [f"  - {sentence}" for sentence in said]


def _differences(found: LayerPlan, engine: EngineFacts, live: LiveFacts) -> Iterator[str]:
    """What differs, as `field = planned in the plan, running in the running layer`."""
    skipped = _NOT_DECIDING | _SHOWN_BY_LAYER | _ROWS | (set() if live.whole else _SHOWN_BY_RUNNER)
    yield from _unequal("", found.facts, live.layer, skipped)
    if not live.whole:
        # What a runner multiplies onto the output, the layer within it does not know of.
        expected = 1.0 if found.facts.scale_on_output else found.facts.routed_scaling_factor
        yield from _unlike("routed_scaling_factor", expected, live.layer.routed_scaling_factor)
    yield from _unequal("", engine, live.engine, _ROWS)
    splits = engine.splits_rows(found.facts)
    if splits is not None and _both(engine):
        yield from _unlike("rows split over tensor-parallel ranks", splits, live.engine.sequence_parallel)


def _both(engine: EngineFacts) -> bool:
    """Tensor and data parallelism at once: only then it is a layer's own business whether it splits its rows."""
    return engine.tensor_parallel > 1 and engine.data_parallel > 1 and not engine.own_rows


def _unequal(prefix: str, planned: Any, running: Any, skipped: set[str]) -> Iterator[str]:
    for one in fields(planned):
        if one.name in skipped:
            continue
        mine, theirs = getattr(planned, one.name), getattr(running, one.name)
        if isinstance(mine, ActivationFacts | SharedFacts) and type(mine) is type(theirs):
            yield from _unequal(f"{prefix}{one.name}.", mine, theirs, set())
        else:
            yield from _unlike(f"{prefix}{one.name}", mine, theirs)


def _unlike(name: str, planned: object, running: object) -> Iterator[str]:
    if planned != running:
        mine, theirs = (str(v) if isinstance(v, ExpertsFormat) else repr(v) for v in (planned, running))
        yield f"{name}: {mine} in the plan, {theirs} in the running layer"
