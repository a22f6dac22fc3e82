"""`plan --placement-from LOAD --write-placement FILE`: a placement that shares measured load, and what it will do."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from vllm_megamoe.cli.model import ModelFiles
from vllm_megamoe.cli.report.make import make_report
from vllm_megamoe.cli.request import Request
from vllm_megamoe.errors import ConfigError
from vllm_megamoe.plan.placement import imbalance, placement_of, read_rows, write_placement

_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Balance:
    """What was asked for.

    Attributes:
        load: the file of measured load.
        file: to write.
        redundant: slots beyond one for each expert.
    """

    load: str
    file: Path
    redundant: int

    @classmethod
    def asked(cls, load: str | None, file: Path | None, redundant: int) -> "Balance | None":
        """None where no placement is asked for.

        Raises:
            ConfigError: one of both files is missing.
        """
        if load is None and file is None and not redundant:
            return None
        if load is None or file is None:
            missing = "--placement-from LOAD.json" if load is None else "--write-placement PLACEMENT.json"
            raise ConfigError(
                f"{missing} is missing; expected both files. Serve with VLLM_MEGAMOE_LOAD_FILE for a load."
            )
        return cls(load, file, redundant)

    def write(self, files: ModelFiles, request: Request) -> tuple[Request, str]:
        """Write the placement; the request with it, and what it does to the measured load.

        Raises:
            ConfigError: the plan does not hold without it, or the load is not this model's.
        """
        rows = read_rows(self.load)
        report, plan, _ = make_report(files, request)
        if plan is None or not report.holds:
            raise ConfigError(f"{self.file} is not written: {report.summary} Plan without --placement-from to see why.")
        ranks = plan.engine.ep_size
        slots = placement_of(rows, (layer.facts for layer in plan.layers), ranks, self.redundant)
        write_placement(self.file, slots)
        options = {**request.options, "expert_placement": str(self.file)}
        return replace(request, options=options), self._told(rows, slots, ranks)

    def _told(self, rows: Mapping[str, list[int]], slots: Mapping[str, tuple[int, ...]], ranks: int) -> str:
        found = [
            (imbalance(rows[name], range(len(rows[name])), ranks), imbalance(rows[name], own, ranks), name)
            for name, own in slots.items()
        ]
        before, after = (sum(each) / len(found) for each in ([f[0] for f in found], [f[1] for f in found]))
        lines = [
            f"Written: {self.file}, {len(next(iter(slots.values())))} slots a layer on {ranks} ranks.",
            f"Fullest rank over the mean of measured load: {before:.2f} before, {after:.2f} with it (mean of layers).",
        ]
        worst = sorted(found, reverse=True)[:_SHOWN]
        return "\n".join([*lines, *(f"  {name}: {was:.2f} -> {becomes:.2f}" for was, becomes, name in worst)])
