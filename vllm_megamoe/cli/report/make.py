"""Plan a model and put the answer together: the plan's numbers, the sentences around them, and the line to copy."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from vllm_megamoe.cli.model import Model, ModelFiles, as_served, read_facts, speculation_of
from vllm_megamoe.cli.report.groups import hccl_of, legal_ep_sizes, make_groups, memory_of, usual_size, wire_of
from vllm_megamoe.cli.report.schema import EngineReport, FormatReport, PlanReport, ViolationReport
from vllm_megamoe.cli.request import Request
from vllm_megamoe.cli.serve_line.correct import correct_line, set_given
from vllm_megamoe.cli.serve_line.engine import read_engine
from vllm_megamoe.cli.serve_line.foreign import not_read
from vllm_megamoe.cli.serve_line.line import ServeLine, Step, write_line
from vllm_megamoe.cli.serve_line.read import read_line
from vllm_megamoe.cli.serve_line.suggest import correct_variables, suggest_line
from vllm_megamoe.environment import as_set_before, choose_profile, wrong_variables
from vllm_megamoe.plan.facts import EngineFacts
from vllm_megamoe.plan.layer_plan import Plan
from vllm_megamoe.plan.model import Speculation
from vllm_megamoe.plan.options import KEY, Options
from vllm_megamoe.plan.placement import placed
from vllm_megamoe.plan.plan import draft_plan, plan_of, violations_of
from vllm_megamoe.plan.read_config.architectures import in_vllm
from vllm_megamoe.profiles.profile import REVISIONS, Profile, find_profile


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


DEFAULT_TOKENS = 2048
"""vLLM's own max_num_batched_tokens of a server on a platform that it has no figure for (EngineArgs, vLLM 0.32)."""


@dataclass(frozen=True, slots=True)
class _Setting:
    """What is planned: engine and options, and the command line that they came from, if any."""

    engine: EngineFacts
    options: Options
    profile: Profile
    legal: tuple[int, ...]
    chosen_here: bool = False
    wrong_options: tuple[str, ...] = ()
    line: ServeLine | None = None
    steps: tuple[Step, ...] = ()


def make_report(files: ModelFiles, request: Request) -> tuple[PlanReport, Plan | None, Model]:
    """Plan what was asked for.

    Returns:
        The report, the plan that it was made from (None for a model without experts), and the model as it was read.

    Raises:
        ConfigError: for a command line, an option or a profile that cannot be read.
    """
    line = read_line(request.line) if request.line else None
    files, unread = as_served(files, line)
    speculative, missing = speculation_of(line)
    if request.draft and speculative is None:
        speculative = Speculation("mtp")
    model = read_facts(files, speculative)
    unread += missing
    setting = _from_sizes(model, request) if line is None else _from_line(model, request, line)
    if not model.layers:
        return _without_experts(model, setting, line, unread), None, model
    layers, misplaced = placed(model.layers, setting.options.expert_placement, setting.engine.ep_size)
    verdict = draft_plan(setting.engine, layers, setting.options)
    plan, violations = plan_of(verdict), violations_of(verdict)
    wrong = [
        ViolationReport(where="options", got=text, expected="", remedy="")
        for text in (*setting.wrong_options, *misplaced)
    ]
    wrong += [ViolationReport(where=v.where, got=v.got, expected=v.expected, remedy=v.remedy) for v in violations]
    line, steps = _command(model, setting, plan, request.draft)
    if setting.line is not None:  # as the server that it starts looks at them
        variables = wrong_variables(as_set_before(dict(line.environment)))
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
        hccl_buffsize_mb=hccl_of(plan),
        wire=wire_of(plan),
        violations=tuple(wrong),
        notes=(*unread, *notes_of(model, setting.profile, setting.line, setting.engine)),
        corrections=steps,
        command=write_line(line) if setting.line is not None or not wrong else None,
    )
    return report, plan, model


def _from_sizes(model: Model, request: Request) -> _Setting:
    options = Options.parse({KEY: dict(request.options)})
    profile = find_profile(options.chosen_profile, options.topology)
    legal = legal_ep_sizes(model.layers, profile)
    sizes = request.tensor_parallel, request.data_parallel
    chosen_here = sizes == (None, None)
    tensor, data = (usual_size(legal, profile), 1) if chosen_here else (sizes[0] or 1, sizes[1] or 1)
    engine = EngineFacts(
        dtype=_dtype(model, request),
        tensor_parallel=tensor,
        data_parallel=data,
        expert_parallel=tensor * data > 1,
        max_num_batched_tokens=request.max_num_batched_tokens or DEFAULT_TOKENS,
    )
    return _Setting(engine, options, profile, legal, chosen_here)


def _dtype(model: Model, request: Request) -> str:
    """The one asked for; else the config's, where the operator takes it, else bfloat16, which the line then names."""
    if request.dtype != "auto":
        return request.dtype
    return model.dtype if model.dtype == "bfloat16" else "bfloat16"


def _from_line(model: Model, request: Request, line: ServeLine) -> _Setting:
    line, sizes = set_given(line, request)
    given = read_engine(line, model.dtype, DEFAULT_TOKENS)
    line, steps = correct_line(line, given, request.options, sizes)
    engine = read_engine(line, model.dtype, given.max_num_batched_tokens)
    options, wrong = Options.read(line.additional_config())
    chosen = choose_profile(options.profile, as_set_before(dict(line.environment)))
    options = options.model_copy(update={"profile": chosen})
    profile = find_profile(options.chosen_profile, options.topology)
    legal = legal_ep_sizes(model.layers, profile)
    return _Setting(engine, options, profile, legal, False, tuple(wrong), line, tuple(steps))


def _command(model: Model, setting: _Setting, plan: Plan, draft: bool) -> tuple[ServeLine, tuple[Step, ...]]:
    if setting.line is None:
        return suggest_line(model.name, setting.engine, setting.options, model.dtype, hccl_of(plan), draft), ()
    line, steps = correct_variables(setting.line, hccl_of(plan))
    return line, (*setting.steps, *steps)


def _engine(setting: _Setting) -> EngineReport:
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


def _without_experts(model: Model, setting: _Setting, line: ServeLine | None, unread: list[str]) -> PlanReport:
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
