"""What is to be planned: the model as it would be served, engine and options, from sizes or from a command line."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from vllm_megamoe.cli.model import Model, ModelFiles, as_served, read_facts, speculation_of, without_quantisation
from vllm_megamoe.cli.report.groups import legal_ep_sizes, usual_size
from vllm_megamoe.cli.report.judge import Judge
from vllm_megamoe.cli.request import Request
from vllm_megamoe.cli.serve_line.ascend import ascend_signs
from vllm_megamoe.cli.serve_line.correct import correct_line, set_given
from vllm_megamoe.cli.serve_line.engine import read_engine
from vllm_megamoe.cli.serve_line.line import ServeLine, Step
from vllm_megamoe.cli.serve_line.read import read_line
from vllm_megamoe.environment import PRODUCTS, as_set_before, choose_profile
from vllm_megamoe.errors import ConfigError
from vllm_megamoe.plan.facts import EngineFacts
from vllm_megamoe.plan.model import Speculation
from vllm_megamoe.plan.options import KEY, Options
from vllm_megamoe.plan.stored_as import find_format
from vllm_megamoe.profiles.profile import Profile, find_profile

DEFAULT_TOKENS = 2048
"""vLLM's own max_num_batched_tokens of a server on a platform that it has no figure for (EngineArgs, vLLM 0.32)."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What is planned: engine and options, and the corrected command line that they came from, if any."""

    engine: EngineFacts
    options: Options
    profile: Profile
    legal: tuple[int, ...]
    chosen_here: bool = False
    wrong_options: tuple[str, ...] = ()
    line: ServeLine | None = None
    steps: tuple[Step, ...] = ()


@dataclass(frozen=True, slots=True)
class Prepared:
    """All that a plan is made from.

    Attributes:
        model: as it would be served.
        setting: engine and options.
        judge: of its memory; None for a model without experts.
        notes: sentences about what was not read.
    """

    model: Model
    setting: Setting
    judge: Judge | None
    notes: Sequence[str]


def prepare(files: ModelFiles, request: Request) -> Prepared:
    """Read the command line and the model, and choose what was left open.

    Raises:
        ConfigError: for a command line, an option, a device or a profile that cannot be read.
    """
    line = read_line(request.line) if request.line else None
    files, unread = as_served(files, line)
    speculative, missing = speculation_of(line)
    if request.draft and speculative is None:
        speculative = Speculation("mtp")
    asked = request.place.stored_as
    if asked is not None:
        files = without_quantisation(files)
    model = read_facts(files, speculative, None if asked is None else find_format(asked))
    setting = _from_sizes(model, request) if line is None else _from_line(model, request, line)
    notes = [*unread, *missing]
    if not model.layers:
        return Prepared(model, setting, None, notes)
    judge = Judge(model, files, request.place, setting.line, setting.profile)
    if setting.chosen_here and setting.profile.product != "none":
        setting = replace(setting, engine=judge.sizes(setting.engine, setting.options, setting.legal))
    return Prepared(model, setting, judge, notes)


def _from_sizes(model: Model, request: Request) -> Setting:
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
        own_rows=options.backend == "cann",
    )
    return Setting(engine, options, profile, legal, chosen_here)


def _dtype(model: Model, request: Request) -> str:
    """The one asked for; else the config's, where the operator takes it, else bfloat16, which the line then names."""
    if request.dtype != "auto":
        return request.dtype
    return model.dtype if model.dtype == "bfloat16" else "bfloat16"


def _from_line(model: Model, request: Request, line: ServeLine) -> Setting:
    ascend = ascend_signs(line)
    line, sizes = set_given(line, request)
    given = read_engine(line, model.dtype, DEFAULT_TOKENS)
    line, steps = correct_line(line, given, request.options, sizes)
    engine = read_engine(line, model.dtype, given.max_num_batched_tokens)
    options, wrong = Options.read(line.additional_config())
    named = options.profile
    chosen = choose_profile(named, as_set_before(dict(line.environment)))
    options = options.model_copy(update={"profile": chosen})
    profile = find_profile(options.chosen_profile, options.topology)
    if ascend and named is None and profile.product == "none":
        raise ConfigError(
            f"The command line is for Ascend ({', '.join(ascend)}), and no product is named; expected --profile with "
            f"one of {', '.join(PRODUCTS)}. Add it, or --profile none to plan for this machine's CPU."
        )
    # vllm-ascend hands every rank rows of its own.
    engine = replace(engine, own_rows=(bool(ascend) and profile.product != "none") or options.backend == "cann")
    legal = legal_ep_sizes(model.layers, profile)
    return Setting(engine, options, profile, legal, False, tuple(wrong), line, tuple(steps))
