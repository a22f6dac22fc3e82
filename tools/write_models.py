"""Write docs/models.md: what the plan says about published models, and how each family is proven.

python -m tools.write_models [--add]

The models are those of tools/models.json, each with the digest of its config files, which lie in
../shared/model_configs (or where VLLM_MEGAMOE_SHARED says). A file there that is not in the list is left alone; `--add`
puts all of them into it. How families are proven comes from tests/families/proven.json.
"""

import argparse
import hashlib
import json
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from vllm_megamoe.cli.model import ModelFiles, read_facts, read_files
from vllm_megamoe.cli.report.make import make_report
from vllm_megamoe.cli.report.schema import GroupReport, PlanReport
from vllm_megamoe.cli.request import Place, Request

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "models.md"
MODELS = ROOT / "tools" / "models.json"
PROVEN = ROOT / "tests" / "families" / "proven.json"
PROFILES = ("a3@9.1", "a3@9.2", "950@9.1", "950@9.2")
SHARED_VARIABLE = "VLLM_MEGAMOE_SHARED"
ROOMY = Place(device_memory=1e6)
"""These pages are about formats and sizes; whether a model fits into so many devices is docs/plan.md's subject."""

_COLUMNS = (
    "model",
    "family's proof",
    "format",
    "MoE layers",
    "experts, topk",
    "H, I",
    "activation",
    "shared experts, no profile",
)

_HEAD = """\
# Models

Written by `python -m tools.write_models` from published config files and the tests of families; do not edit.
`vllm-megamoe plan MODEL` says the same, and more, about any checkpoint.

## How families are proven

*Served*: a tiny model with the family's real class and config structure runs in vLLM's engine through the operator's
CPU twin, and is compared with vLLM's own MoE. *Block*: the MoE layer alone, against the family's formula, where vLLM
builds no such model on CPU. Nothing here ran on an NPU.
"""
_TABLE = """
## Published models with experts

Each is planned with `requant=allow` and otherwise default options. A format in parentheses cannot be read; what a
product says is about the model's sizes and activation then. Whether a model fits into the memory of so many devices is
[plan.md](plan.md)'s subject. [checkpoints.md](checkpoints.md) says what each format
becomes. *pads* is zero-padding that is exact, with the weights and
FLOPs that it adds; *no* gives the rule that is violated. Profiles a2 have the sizes of a3.

"""


def configs_folder() -> Path:
    """Where published config files lie."""
    return Path(os.environ.get(SHARED_VARIABLE) or ROOT.parent / "shared") / "model_configs"


def page(configs: Path, proven: Path = PROVEN) -> str:
    """The page's text."""
    rows = json.loads(proven.read_text(encoding="utf-8"))
    models = [read_files(str(file)) for file in listed(configs)]
    with_experts = [model for model in models if read_facts(model).layers]
    dense = [model.name for model in models if not read_facts(model).layers]
    parts = [_HEAD, *markdown(_proofs(rows)), _TABLE.rstrip("\n"), ""]
    parts += markdown(_models(with_experts, rows))
    if dense:
        parts += ["", "## Published models without experts", "", "`--quantization megamoe` would change nothing:"]
        parts += [f"{', '.join(dense)}."]
    return "\n".join(parts) + "\n"


def listed(configs: Path) -> list[Path]:
    """The config of every model of the list, which must be as it was listed.

    Raises:
        ValueError: a file is absent or another one than the list's.
    """
    files = {name: configs / f"{name}_config.json" for name in listed_digests()}
    absent = [name for name, file in files.items() if not file.is_file()]
    other = [name for name, digest in listed_digests().items() if name not in absent and _digest(files[name]) != digest]
    if absent or other:
        raise ValueError(
            f"{configs}: no file of {absent}, another file of {other}; expected those of {MODELS.name}. Put them back, "
            "or list what is there with `python -m tools.write_models --add`."
        )
    return list(files.values())


def listed_digests() -> dict[str, str]:
    """Name of a model's file, without its ending, and digest of its config files."""
    found: dict[str, str] = json.loads(MODELS.read_text(encoding="utf-8"))
    return found


def _digest(config: Path) -> str:
    """Of config.json and the description of a quantisation beside it."""
    beside = config.with_name(config.name.replace("_config.json", "_hf_quant_config.json"))
    content = b"".join(file.read_bytes() for file in (config, beside) if file.is_file())
    return hashlib.sha256(content).hexdigest()


def add_all(configs: Path) -> None:
    """Put every model of the folder into the list; one that is there with another digest gets the new one."""
    models = [file for file in configs.glob("*_config.json") if not file.name.endswith("_hf_quant_config.json")]
    found = {file.name.removesuffix("_config.json"): _digest(file) for file in models}
    MODELS.write_text(json.dumps(listed_digests() | found, indent=0, sort_keys=True) + "\n", encoding="utf-8")


def markdown(rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    """Lines of a table, the first row its head."""
    for number, row in enumerate(rows):
        yield f"| {' | '.join(cell.replace('|', '/') for cell in row)} |"
        if number == 0:
            yield "|" + "---|" * len(row)


def between(text: str, name: str, rows: Iterable[tuple[str, ...]]) -> str:
    """A page with another table between `<!-- name -->` and `<!-- end of name -->`."""
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    before, rest = text.split(begin)
    _, after = rest.split(end)
    table = "\n".join(markdown(rows))
    return f"{before}{begin}\n{table}\n\n{end}{after}"


def _proofs(rows: list[dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    yield "family", "proof", "shared experts", "layouts", "runs in", "test"
    for row in rows:
        layouts = ", ".join(row["layouts"])
        shared = ", ".join(dict.fromkeys(row["shared_experts"])) or "none"
        target = "`make test`" if row["runs"] == "every" else "`make test-full`"
        link = f"[{Path(row['test']).name}](../{row['test']})"
        yield row["family"], row["proof"], shared, layouts, target, link


def _models(models: list[ModelFiles], rows: list[dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    proof = {architecture: row["proof"] for row in reversed(rows) for architecture in row["architectures"]}
    yield *_COLUMNS, *PROFILES
    for files in models:
        request = [Request({"profile": name, "requant": "allow"}, place=ROOMY) for name in ("none", *PROFILES)]
        alone, *products = [make_report(files, each)[0] for each in request]
        model = read_facts(files)
        facts = model.layers[0]
        yield (
            model.name,
            proof.get(model.facts.architecture, "-"),
            ", ".join(f.label if f.loads else f"({f.label})" for f in model.formats),
            ", ".join(g.layers if len(g.layers) < 20 else f"{g.count} of them" for g in alone.groups),
            f"{facts.num_experts}, {facts.topk}",
            f"{facts.hidden}, {facts.intermediate_hidden}",
            _each(g.activation.text if g.activation else facts.activation.name for g in alone.groups),
            _each(map(_shared, alone.groups)),
            *map(_verdict, products),
        )


def _shared(group: GroupReport) -> str:
    shared = group.shared_experts
    if shared is None or shared.mode == "none":
        return "none"
    return f"fused, {shared.pieces}" if shared.mode == "fused" else f"vLLM: {shared.reason}"


def _verdict(plan: PlanReport) -> str:
    wrong = [rule.got for rule in plan.violations if "format" not in rule.got]
    if wrong:
        return f"no: {_each(wrong)}"
    return _each("fits" if g.padding is None else f"pads, +{g.padding.overhead:.0%}" for g in plan.groups)


def _each(texts: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(texts))


def main(arguments: list[str] | None = None) -> int:
    """Write the page; where the config files are absent, say so and leave it as it is."""
    parser = argparse.ArgumentParser(prog="python -m tools.write_models", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--add", action="store_true", help="list every model of the folder first")
    asked, configs = parser.parse_args(arguments), configs_folder()
    if not configs.is_dir():
        print(
            f"docs/models.md: not written, there is no folder {configs}; put ../shared there or set {SHARED_VARIABLE}"
        )
        return 0
    if asked.add:
        add_all(configs)
    PAGE.write_text(page(configs), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
