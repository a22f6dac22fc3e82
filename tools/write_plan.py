"""Write what docs/plan.md takes from data: the table of devices, and the JSON schemas of all commands.

python -m tools.write_plan
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from pydantic import BaseModel

from tools.write_models import between
from vllm_megamoe.cli.checkpoint.schema import CheckReport, ConvertReport, LogprobsReport, ShowReport
from vllm_megamoe.cli.device_check.report import DeviceReport
from vllm_megamoe.cli.doctor.environment import Report
from vllm_megamoe.cli.receive import ReceiveReport
from vllm_megamoe.cli.report.fit_schema import SearchReport
from vllm_megamoe.cli.report.schema import ComparisonReport, PlanReport
from vllm_megamoe.profiles.devices import DEVICES, GB, TERA

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "plan.md"
SCHEMAS = ROOT / "docs" / "schemas"
REPORTS: Mapping[str, type[BaseModel]] = {
    "plan": PlanReport,
    "plan-compare": ComparisonReport,
    "plan-search": SearchReport,
    "plan-recv": ReceiveReport,
    "show": ShowReport,
    "check": CheckReport,
    "check-logprobs": LogprobsReport,
    "check-device": DeviceReport,
    "convert": ConvertReport,
    "doctor": Report,
}
"""Name of the file -> what the command prints with `--json`."""


def _devices() -> Iterator[tuple[str, ...]]:
    yield "device", "profile's product", "memory, GiB", "memory, GB/s", "peak, 10^12 a second", "link, GB/s", "sources"
    for device in DEVICES:
        peak = ", ".join(f"{element} {value / TERA:g}" for element, value in device.peak.items())
        yield (
            device.name,
            device.product,
            f"{device.memory_gib:g}",
            "-" if device.memory_bandwidth is None else f"{device.memory_bandwidth / GB:g}",
            peak or "-",
            "-" if device.link is None else f"{device.link / GB:g}",
            "; ".join(f"{name}: {source}" for name, source in device.sources.items()),
        )


def page(text: str) -> str:
    """The page with the table of devices as the data has it."""
    return between(text, "devices", _devices())


def schemas() -> dict[str, str]:
    """Each schema's text, by the name of its file."""
    return {f"{name}.json": json.dumps(each.model_json_schema(), indent=2) + "\n" for name, each in REPORTS.items()}


def main() -> int:
    """Write the page and the schemas."""
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    SCHEMAS.mkdir(exist_ok=True)
    for name, text in schemas().items():
        (SCHEMAS / name).write_text(text, encoding="utf-8")
    print("docs/plan.md and docs/schemas: written")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
