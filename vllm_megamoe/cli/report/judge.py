"""Judge an engine by memory, and choose what the user left open: the number of ranks, the length of a sequence."""

from dataclasses import replace

from vllm_megamoe.cli.model import Model, ModelFiles
from vllm_megamoe.cli.report.fit import Judged, read_checkpoint, read_serving
from vllm_megamoe.cli.request import Place
from vllm_megamoe.cli.serve_line.line import ServeLine
from vllm_megamoe.cli.serve_line.suggest import hccl_value
from vllm_megamoe.environment import BUFFSIZE_VARIABLE, as_set_before
from vllm_megamoe.plan.facts import EngineFacts
from vllm_megamoe.plan.fit import ALLOW_LONG, Checkpoint, Serving, fit, overfull, too_long
from vllm_megamoe.plan.layer_plan import Plan
from vllm_megamoe.plan.options import Options
from vllm_megamoe.plan.splits import hccl_of, smallest, splits
from vllm_megamoe.plan.stored_as import find_format
from vllm_megamoe.plan.verdict import Violation
from vllm_megamoe.profiles.profile import Profile

_USUAL_LENGTH = 32_768
"""Tokens that a number of ranks chosen here must hold at least, where the user names no length."""
_SHORTEST = 1024
"""Below so many tokens a lowered length helps nobody: the plan is refused instead."""


class Judge:
    """Everything that memory depends on beside the parallel sizes.

    Args:
        model, files: as they were read, with what the line changes.
        place: of the request.
        line: the command line, None for none.
        profile: whose device is taken where none is named.

    Raises:
        ConfigError: a device, a format or a flag's value that is none.
    """

    def __init__(self, model: Model, files: ModelFiles, place: Place, line: ServeLine | None, profile: Profile) -> None:
        self.stored_as = None if place.stored_as is None else find_format(place.stored_as)
        self.checkpoint: Checkpoint = read_checkpoint(model, files, self.stored_as)
        self.serving: Serving = read_serving(files, place, line, profile)
        self.line = line
        environment = as_set_before({} if line is None else dict(line.environment))
        allowed = environment.get(ALLOW_LONG, "").strip().lower() in ("1", "true")
        length = too_long(self.serving, files.config, allowed)
        self.wrong = [] if length is None else [length]

    def sizes(self, engine: EngineFacts, options: Options, legal: tuple[int, ...]) -> EngineFacts:
        """The engine itself where it fits, else the smallest one that does; itself where none does.

        A length that nobody named is no reason for more ranks beyond a usual one.
        """
        serving = self.serving
        if serving.device is None or not legal:
            return engine
        if not serving.chosen_len:
            serving = replace(serving, max_model_len=min(serving.max_model_len, _USUAL_LENGTH))
        for split in splits(self.checkpoint, engine, options, serving, engine.ep_size):
            if split.engine.tensor_parallel == engine.tensor_parallel and split.fit.holds:
                return engine
        found = smallest(self.checkpoint, engine, options, serving, [size for size in legal if size > engine.ep_size])
        return engine if found is None else found.engine

    def judge(
        self, plan: Plan, options: Options, legal: tuple[int, ...], fixed: bool
    ) -> tuple[Judged, list[Violation], list[str]]:
        """The memory of a planned engine, what is wrong with it, and what was lowered.

        Args:
            fixed: whether the length stands in a line that is not ours to choose.
        """
        needed = hccl_of(plan)
        buffsize = needed if needed is None else hccl_value(needed)
        if self.line is not None and needed is not None:
            given = as_set_before(dict(self.line.environment)).get(BUFFSIZE_VARIABLE)
            buffsize = max(needed, int(given)) if given is not None and given.isdecimal() else buffsize
        found = fit(self.checkpoint, plan, self.serving, buffsize)
        notes = []
        if not found.holds and not fixed and not self.serving.chosen_len and found.longest >= _SHORTEST:
            own, length = self.serving.max_model_len, found.longest // _SHORTEST * _SHORTEST
            notes.append(
                f"A sequence of the model's own {own} tokens does not fit: planned, and served, with {length} at most."
            )
            found = fit(self.checkpoint, plan, replace(self.serving, max_model_len=length), buffsize)
        name = None if self.stored_as is None else self.stored_as.name
        if found.holds:
            return Judged(self.checkpoint, found, stored_as=name), self.wrong, notes
        best = smallest(self.checkpoint, plan.engine, options, self.serving, legal)
        engine = None if best is None else best.engine
        violation = overfull(found, engine)
        return Judged(self.checkpoint, found, engine, name), [*self.wrong, *([violation] if violation else [])], notes
