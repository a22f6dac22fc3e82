"""Plan a model and put the answer together: the plan's numbers, the sentences around them, and the line to copy."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from vllm_megamoe.cli.model import Model, ModelFiles
from vllm_megamoe.cli.report.fit import bounds_report, fit_report
from vllm_megamoe.cli.report.groups import make_groups, memory_of, wire_of
from vllm_megamoe.cli.report.prepare import Setting, prepare
from vllm_megamoe.cli.report.schema import EngineReport, FormatReport, PlanReport, ViolationReport
from vllm_megamoe.cli.request import Request
from vllm_megamoe.cli.serve_line.foreign import not_read
from vllm_megamoe.cli.serve_line.line import ServeLine, Step, write_line
from vllm_megamoe.cli.serve_line.suggest import add_place, correct_variables, suggest_line
from vllm_megamoe.environment import as_set_before, wrong_variables
from vllm_megamoe.plan.facts import EngineFacts
from vllm_megamoe.plan.fit import Fit
from vllm_megamoe.plan.layer_plan import Plan
from vllm_megamoe.plan.placement import placed
from vllm_megamoe.plan.plan import draft_plan, plan_of, violations_of
from vllm_megamoe.plan.read_config.architectures import in_vllm
from vllm_megamoe.plan.splits import hccl_of
from vllm_megamoe.profiles.profile import REVISIONS, Profile


def notes_of(model: Model, profile: Profile, line: ServeLine | None, engine: EngineFacts) -> Iterator[str]:
    """Sentences about the model, the profile, the engine and the command line."""
    if profile.product != "none":
        yield f"Revisions in profile names: {REVISIONS}."
    yield from _vllms_of(model)
    yield from model.facts.warnings
    yield from model.facts.notes
    for each in model.formats:
        if not each.loads:
            yield f"{each.label} cannot be read: {each.unread}."
    split = [engine.splits_rows(layer) for layer in model.layers]
    if None in split and engine.tensor_parallel > 1 and engine.data_parallel > 1:
        yield (
            "Whether vLLM splits this model's rows over the tensor-parallel ranks is not known here; if it does not, "
            "the server rejects tensor and data parallelism together while it builds the layers."
        )
    if model.facts.drafts_left_out:
        left_out = f"{model.facts.drafts_left_out} draft (MTP) layer(s) with experts are left out"
        yield f"{left_out}; --draft plans them, for speculation."
    if line is not None:
        yield from not_read(line)


def _vllms_of(model: Model) -> Iterator[str]:
    """Which releases of vLLM lack a class of this architecture."""
    architecture = model.facts.architecture
    found = in_vllm(architecture)
    if not architecture or found.releases == found.all_releases:
        return
    missing = " and ".join(release for release in found.all_releases if release not in found.releases)
    verb = "has" if len(found.all_releases) - len(found.releases) == 1 else "have"
    dropped = f"; the last release with one is {found.last}" if found.last else ""
    yield (
        f"vLLM {missing} {verb} no class {architecture}{dropped}. A plug-in may bring one; else vLLM builds the model "
        "from transformers, if that has it, and this plan does not describe its layers."
    )


def summary_of(model: Model, engine: EngineFacts, profile: Profile, violated: int) -> str:
    """One sentence: nothing to do, the plan holds, or how many rules are violated."""
    if model.only_quantisation:
        return (
            "This file describes a quantisation and no layers: there is nothing to plan. Give the checkpoint's "
            "config.json; a file like this one beside it is read too."
        )
    if not model.layers and model.facts.known:
        return "This model has no MoE layer: --quantization megamoe would change nothing."
    if not model.layers:
        return "No experts under names known here; if there are none, --quantization megamoe would change nothing."
    ranks = f"{engine.ep_size} rank" + ("s" if engine.ep_size > 1 else "")
    where = f"under profile {profile.name} on {ranks}"
    if violated:
        rules = "1 rule is violated" if violated == 1 else f"{violated} rules are violated"
        return f"It cannot be served {where}: {rules}."
    return f"The plan holds {where}."


def make_report(files: ModelFiles, request: Request) -> tuple[PlanReport, Plan | None, Model]:
    """Plan what was asked for.

    Returns:
        The report, the plan that it was made from (None for a model without experts), and the model as it was read.

    Raises:
        ConfigError: for a command line, an option or a profile that cannot be read.
    """
    prepared = prepare(files, request)
    model, setting, judge, line = prepared.model, prepared.setting, prepared.judge, prepared.setting.line
    if judge is None:
        return _without_experts(model, setting, line, prepared.notes), None, model
    layers, misplaced = placed(model.layers, setting.options.expert_placement, setting.engine.ep_size)
    verdict = draft_plan(setting.engine, layers, setting.options)
    plan, violations = plan_of(verdict), violations_of(verdict)
    wrong = [
        ViolationReport(where="options", got=text, expected="", remedy="")
        for text in (*setting.wrong_options, *misplaced)
    ]
    wrong += [ViolationReport(where=v.where, got=v.got, expected=v.expected, remedy=v.remedy) for v in violations]
    judged, overfull, lowered = judge.judge(plan, setting.options, setting.legal, fixed=setting.line is not None)
    wrong += [ViolationReport(where=v.where, got=v.got, expected=v.expected, remedy=v.remedy) for v in overfull]
    written, steps = _command(model, setting, plan, request, judged.fit if lowered else None)
    if line is not None:  # as the server that it starts looks at them
        variables = wrong_variables(as_set_before(dict(written.environment)))
        wrong = [*(ViolationReport(where="environment", got=v, expected="", remedy="") for v in variables), *wrong]
    report = PlanReport(
        model=model.name,
        architecture=model.facts.architecture,
        in_vllm=in_vllm(model.facts.architecture).releases,
        num_layers=model.facts.num_layers,
        moe_layers=len(model.layers),
        drafts_left_out=model.facts.drafts_left_out,
        summary=summary_of(model, setting.engine, setting.profile, len(wrong)),
        holds=not wrong,
        profile=setting.profile.name,
        topology=setting.profile.topology,
        formats=tuple(FormatReport(name=f.name, label=f.label, loads=f.loads, note=f.note) for f in model.formats),
        engine=_engine(setting),
        groups=make_groups(plan, model.layers),
        ep_sizes=setting.legal,
        memory=memory_of(plan),
        fit=fit_report(judged, setting.engine),
        bounds=bounds_report(judged, plan, request.place.router_skew),
        hccl_buffsize_mb=hccl_of(plan),
        wire=wire_of(plan),
        violations=tuple(wrong),
        notes=(*prepared.notes, *lowered, *notes_of(model, setting.profile, setting.line, setting.engine)),
        corrections=steps,
        command=write_line(written) if line is not None or not wrong else None,
    )
    return report, plan, model


def _command(
    model: Model, setting: Setting, plan: Plan, request: Request, lowered: Fit | None
) -> tuple[ServeLine, tuple[Step, ...]]:
    if setting.line is None:
        line = suggest_line(model.name, setting.engine, setting.options, model.dtype, hccl_of(plan), request.draft)
        return add_place(line, request.place, lowered), ()
    line, steps = correct_variables(setting.line, hccl_of(plan))
    return line, (*setting.steps, *steps)


def _engine(setting: Setting) -> EngineReport:
    engine = setting.engine
    return EngineReport(
        tensor_parallel=engine.tensor_parallel,
        data_parallel=engine.data_parallel,
        pipeline_parallel=engine.pipeline_parallel,
        ep_size=engine.ep_size,
        chosen_here=setting.chosen_here,
        max_num_batched_tokens=engine.max_num_batched_tokens,
        dtype=engine.dtype,
    )


def _without_experts(model: Model, setting: Setting, line: ServeLine | None, unread: Sequence[str]) -> PlanReport:
    return PlanReport(
        model=model.name,
        architecture=model.facts.architecture,
        in_vllm=in_vllm(model.facts.architecture).releases,
        num_layers=model.facts.num_layers,
        moe_layers=0,
        summary=summary_of(model, setting.engine, setting.profile, 0),
        holds=True,
        profile=setting.profile.name,
        topology=setting.profile.topology,
        notes=(*unread, *notes_of(model, setting.profile, line, setting.engine)),
    )


def at_ep_size(engine: EngineFacts, size: int) -> EngineFacts:
    """The same engine on so many ranks: tensor parallelism stays where it divides the size, the rest is data's."""
    tensor = engine.tensor_parallel if size % engine.tensor_parallel == 0 else size
    return replace(engine, tensor_parallel=tensor, data_parallel=size // tensor, expert_parallel=size > 1)
