"""Write docs/checkpoints.md: what each checkpoint format becomes, and what the plan says of published ones.

python -m tools.write_checkpoints

The models are those of tools/models.json (see tools.write_models, whose `--add` lists new ones).
"""

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from tools.write_models import ROOMY, configs_folder, listed, markdown
from vllm_megamoe.checkpoint.formats import FORMATS, FormatFacts
from vllm_megamoe.cli.model import ModelFiles, read_facts, read_files
from vllm_megamoe.cli.report.make import make_report
from vllm_megamoe.cli.report.schema import GroupReport, PlanReport
from vllm_megamoe.cli.request import Request
from vllm_megamoe.profiles.losses import OUTPUT
from vllm_megamoe.profiles.use_cases import UseCase

PAGE = Path(__file__).resolve().parents[1] / "docs" / "checkpoints.md"
PROFILES = ("none", "a3@9.1", "a3@9.2", "950@9.1", "950@9.2")

_HEAD = """\
# Checkpoints

Written by `python -m tools.write_checkpoints` from the table of formats and from published config files; do not edit.
`vllm-megamoe plan MODEL` says the same, and more, about any checkpoint; `show` and `check` look into its weights.

`vllm serve CHECKPOINT --quantization megamoe` recognises the format of every layer's experts from the checkpoint's own
files: msModelSlim's `quant_model_description.json`, `quantization_config` in config.json, or ModelOpt's
`hf_quant_config.json`; without any of them it is BF16. Two descriptions of the same weights are an error.

- *Exact* use cases hold the checkpoint's own numbers: codes and scales are copied, never derived anew. `use_case: auto`
  takes the first one that the product has; it needs the fewest bytes.
- *Lossy* ones need `"requant": "allow"`; `auto` then takes the first one that the product has.
- What is exact for some files only is tested at load, tensor by tensor. Without consent a number that would be rounded
  is an error that names its tensor.

## What a loss is

Weights: rms of the error over the rms of the weights, of Gaussian weights that were stored in the format first.
Outputs: error of a layer of random experts over the rms of its output, against exact arithmetic with the checkpoint's
numbers; the operator's own rounding of tokens and activations is in it, and is there for exact weights too. Both belong
to those weights: `vllm-megamoe check` measures a checkpoint's own.

"""


def page(configs: Path) -> str:
    """The page's text."""
    models = [read_files(str(file)) for file in listed(configs)]
    with_experts = [model for model in models if read_facts(model).layers]
    parts = [_HEAD.rstrip("\n"), "", *markdown(_outputs()), "", "## Formats", "", *markdown(_formats())]
    parts += ["", *_unread(), "", "## Published models", "", *_LEGEND, "", *markdown(_models(with_experts))]
    return "\n".join(parts) + "\n"


_LEGEND = (
    "Planned with default options on 8 ranks, or on as many as the product needs, and one in profile `none`. *with a",
    "loss* needs `requant=allow`, and gives the error of the weights; *pads* is zero-padding, which is exact; *no*",
    "gives the rule that is violated. Profiles a2 run what a3 runs.",
)


def _outputs() -> Iterator[tuple[str, ...]]:
    yield "use case", "weights, tokens", "error of a layer's output"
    words = {"a16": "BF16", "a8": "8 bits", "a4": "4 bits, 8 in the second product"}
    for case in UseCase:
        tokens, _, weights = case.value.partition("w")
        kind = {"16": "BF16", "8-int": "INT8", "4-int": "INT4", "8-fp": "MXFP8", "4-fp": "MXFP4"}[weights]
        yield case.value, f"{kind}, {words[tokens]}", str(OUTPUT[case])


def _formats() -> Iterator[tuple[str, ...]]:
    yield "format", "name", "exact", "lossy, error of the weights", "remarks"
    for form in FORMATS.values():
        if form.loads:
            lossy = ", ".join(f"{case.value} {loss}" for case, loss in form.losses.items())
            yield form.label, f"`{form.name}`", ", ".join(form.use_cases) or "-", lossy or "-", _remarks(form)


def _remarks(form: FormatFacts) -> str:
    """The note without the figures, which have a column."""
    return "; ".join(part for part in form.note.split("; ") if " adds " not in part)


def _unread() -> Iterator[str]:
    yield "Known by name and not read:"
    yield ""
    yield from (f"- {form.label} (`{form.name}`): {form.unread}" for form in FORMATS.values() if not form.loads)


def _models(models: Iterable[ModelFiles]) -> Iterator[tuple[str, ...]]:
    yield "model", "routed experts", "shared experts", *PROFILES
    for files in models:
        model = read_facts(files)
        shared = dict.fromkeys(layer.shared.experts_format.facts.label for layer in model.layers if layer.shared)
        formats = ", ".join(form.label for form in model.formats)
        yield model.name, formats, ", ".join(shared) or "-", *(_verdict(files, profile) for profile in PROFILES)


def _verdict(files: ModelFiles, profile: str) -> str:
    """Without consent where that is enough, else with it."""
    plan, *_ = make_report(files, Request({"profile": profile}, place=ROOMY))
    if not plan.holds:
        plan, *_ = make_report(files, Request({"profile": profile, "requant": "allow"}, place=ROOMY))
    if not plan.holds:
        return f"no: {_each(rule.got for rule in plan.violations)}"
    return _each(map(_group, plan.groups)) + _fused(plan)


def _group(group: GroupReport) -> str:
    text = group.use_case or ""
    if group.loss:
        text += f" with a loss of {group.loss}"
    return text + (f", pads +{group.padding.overhead:.0%}" if group.padding else "")


def _fused(plan: PlanReport) -> str:
    fused = any(group.shared_experts is not None and group.shared_experts.mode == "fused" for group in plan.groups)
    return "; shared experts fused" if fused else ""


def _each(texts: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(texts))


def main() -> int:
    """Write the page; where the config files are absent, say so and leave it as it is."""
    configs = configs_folder()
    if not configs.is_dir():
        print(f"docs/checkpoints.md: not written, there is no folder {configs}")
        return 0
    PAGE.write_text(page(configs), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
