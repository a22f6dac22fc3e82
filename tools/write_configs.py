"""Write configs/: a file for `vllm serve --config` for each deployment that its product can run; and docs/configs.md.

python -m tools.write_configs

Rows: tools/deployments.py. A row is planned with the model's published config.json, which lies in
../shared/model_configs (or where VLLM_MEGAMOE_SHARED says), and with experts in the format of the row, as `plan --as`
does. What it says goes into the file's head: operator revision, use case, padding, HCCL_BUFFSIZE. A row that no
revision of the product's operator can run has no file; the page says why.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.deployments import DEPLOYMENTS, DEVICES, MODELS, OURS, TYPES, Deployment
from tools.write_models import configs_folder, markdown
from vllm_megamoe.cli.model import read_files
from vllm_megamoe.cli.report.make import make_report
from vllm_megamoe.cli.request import Place, Request

ROOT = Path(__file__).resolve().parents[1]
FOLDER, PAGE = ROOT / "configs", ROOT / "docs" / "configs.md"
REVISIONS = ("9.1", "9.2")
USUAL_MB = 200
"""HCCL's own default of HCCL_BUFFSIZE, and what most tutorials set."""
_PORTS = {"prefill": 30000, "decode": 30100}
_KV_ROLES = {"prefill": "kv_producer", "decode": "kv_consumer"}


@dataclass(frozen=True)
class Planned:
    """What the plan says of a row.

    Attributes:
        revision: the earliest of the operator that runs it; empty where none does, or nobody can say.
        use_cases: of its layers.
        padding: weights and FLOPs that zero-padding adds, 0 for none.
        buffsize: HCCL_BUFFSIZE, None where the product has none or nobody can say.
        refusals: why the last revision does not run it.
    """

    revision: str = ""
    use_cases: tuple[str, ...] = ()
    padding: float = 0.0
    buffsize: int | None = None
    refusals: tuple[str, ...] = ()


def name_of(row: Deployment) -> str:
    """Of the file, without its ending."""
    return "-".join(filter(None, (row.model.lower(), row.product, row.role)))


def settings_of(row: Deployment) -> dict[str, Any]:
    """The flags, by their long names."""
    found: dict[str, Any] = {
        "model": f"./{row.checkpoint}",
        "served-model-name": row.model,
        "quantization": "megamoe",
        "tensor-parallel-size": row.tp,
        "data-parallel-size": row.dp,
        "enable-expert-parallel": True,
        "max-model-len": row.length,
        "max-num-batched-tokens": row.tokens,
        "max-num-seqs": row.seqs,
        "gpu-memory-utilization": row.memory,
    }
    method = MODELS[row.model].speculation
    if method:
        found["speculative-config"] = json.dumps({"method": method, "num_speculative_tokens": 1})
    if row.role:
        sides = {"tp_size": row.tp, "dp_size": row.dp}
        found["kv-transfer-config"] = json.dumps(
            {
                "kv_connector": "MooncakeConnectorV1",
                "kv_role": _KV_ROLES[row.role],
                "kv_port": _PORTS[row.role],
                "kv_connector_extra_config": {role: _side(row, role) or sides for role in _KV_ROLES},
            }
        )
    return found


def _side(row: Deployment, role: str) -> dict[str, int] | None:
    """Sizes of the other side of a deployment that splits."""
    for other in DEPLOYMENTS:
        if (other.model, other.product, other.role) == (row.model, row.product, role):
            return {"tp_size": other.tp, "dp_size": other.dp}
    return None


def plan_row(row: Deployment, folder: Path) -> Planned:
    """Plan a row, as `vllm-megamoe plan` does, for each revision of its product's operator, the earlier one first."""
    model = MODELS[row.model]
    if not model.config:
        return Planned()
    files = read_files(str(folder / f"{model.config}_config.json"))
    place = Place(
        memory_utilization=row.memory,
        max_model_len=row.length,
        max_num_seqs=row.seqs,
        stored_as=TYPES[row.form] or None,
    )
    refusals: tuple[str, ...] = ()
    for revision in REVISIONS:
        # The package of CANN serves there; its lane hands every rank rows of its own.
        options = {"profile": f"{row.product}@{revision}", "backend": "cann"}
        asked = Request(options, row.tp, row.dp, row.tokens, draft=bool(model.speculation), place=place)
        report, *_ = make_report(files, asked)
        refusals = tuple(f"{each.got}; expected {each.expected}" for each in report.violations)
        if not refusals:
            paddings = [group.padding.overhead for group in report.groups if group.padding]
            needed = report.hccl_buffsize_mb
            return Planned(
                revision,
                tuple(dict.fromkeys(group.use_case for group in report.groups if group.use_case)),
                max(paddings, default=0.0),
                None if needed is None else max(USUAL_MB, -(-needed // 8) * 8),
            )
    return Planned(refusals=refusals)


def text_of(row: Deployment, planned: Planned) -> str:
    """The file."""
    name, variable = name_of(row), f"HCCL_BUFFSIZE={planned.buffsize} " if planned.buffsize else ""
    sides = f", {row.role} side" if row.role else ""
    lines = [
        f"{row.model} on {row.product}{sides}: {row.tp * row.dp} devices ({DEVICES[row.product]}), {row.form} experts.",
        "Written by `python -m tools.write_configs` from tools/deployments.py; do not edit.",
        "",
        f"    {variable}vllm serve --config configs/{name}.yaml",
        "",
    ]
    if planned.revision:
        padding = f", padded by {planned.padding:.0%}" if planned.padding else ""
        lines.append(
            f"Experts run as {' and '.join(planned.use_cases)}{padding}; operator {planned.revision} or later."
        )
    else:
        lines.append(
            "No config.json of this model is published here: ask `vllm-megamoe plan` with the checkpoint's own."
        )
    if name in OURS:
        lines.append("No tutorial serves this: sizes and the checkpoint's name are ours, after its other products.")
    if row.role:
        lines.append("Hosts, ports and the proxy in front are yours: vllm-ascend's page on prefill and decode apart.")
    head = "\n".join(f"# {line}".rstrip() for line in lines)
    body = "\n".join(f"{key}: {_yaml(value)}" for key, value in settings_of(row).items())
    return f"{head}\n{body}\n"


def _yaml(value: Any) -> str:
    if isinstance(value, str) and not value.startswith("{"):
        return value
    return f"'{value}'" if isinstance(value, str) else json.dumps(value)


_HEAD = """\
# Configs

Written by `python -m tools.write_configs` from `tools/deployments.py`; do not edit.

What people deploy on Ascend, as files for `vllm serve --config`: one for serving in one engine, and one each for
prefill and decode where people split. Sizes and checkpoints are those of vllm-ascend's tutorials (0.30.0rc2) where one
serves the model so; elsewhere they are ours, and the last column says it. Each was planned with the model's published
config.json, and vLLM's own parser reads it; **none has run on a device**. Put the checkpoint beside the folder, or
change `model:`.

    HCCL_BUFFSIZE=200 vllm serve --config configs/qwen3-30b-a3b-a3.yaml

*operator* is the earliest revision that runs it ([limits.md](limits.md)), *HCCL_BUFFSIZE* the least that the plan asks
for, and not less than HCCL's own default of 200. A flag on the command line goes before the file's.

"""


def page(rows: Mapping[Deployment, Planned]) -> str:
    """docs/configs.md."""
    refused = [(row, planned) for row, planned in rows.items() if planned.refusals]
    parts = [_HEAD.rstrip("\n"), "", *markdown(_table(rows))]
    if refused:
        parts += ["", "## Without a file", ""]
        parts += [f"- {row.model} on {row.product}: {planned.refusals[0]}" for row, planned in refused]
    return "\n".join(parts) + "\n"


def _table(rows: Mapping[Deployment, Planned]) -> Iterator[tuple[str, ...]]:
    yield "file", "checkpoint", "TP x DP", "experts as", "padding", "operator", "HCCL_BUFFSIZE", "sizes"
    for row, planned in rows.items():
        if planned.refusals:
            continue
        name = name_of(row)
        yield (
            f"[{name}](../configs/{name}.yaml)",
            row.checkpoint,
            f"{row.tp} x {row.dp}",
            ", ".join(planned.use_cases) or "ask plan",
            f"+{planned.padding:.0%}" if planned.padding else "-",
            planned.revision or "-",
            str(planned.buffsize or "-"),
            "ours" if name in OURS else "tutorial",
        )


def written(folder: Path) -> dict[Path, str]:
    """Every file with its text, and the page."""
    rows = {row: plan_row(row, folder) for row in DEPLOYMENTS}
    files = {FOLDER / f"{name_of(row)}.yaml": text_of(row, p) for row, p in rows.items() if not p.refusals}
    return files | {PAGE: page(rows)}


def main() -> int:
    """Write all; where the published configs are absent, say so and leave things as they are."""
    folder = configs_folder()
    if not folder.is_dir():
        print(f"configs/: not written, there is no folder {folder}; put ../shared there or set VLLM_MEGAMOE_SHARED")
        return 0
    FOLDER.mkdir(exist_ok=True)
    files = written(folder)
    for place in set(FOLDER.glob("*.yaml")) - set(files):
        place.unlink()
    for place, text in files.items():
        place.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
