"""The earliest point where vLLM shows a plugin the whole config: there the plan is made, once for the engine.

That is the platform's `check_and_update_config`, which VllmConfig calls at the end of its construction, in the process
that the user started and before any worker exists. vLLM offers no registration for it, so the method is wrapped once;
without `--quantization megamoe` the wrapper only delegates. Workers call it again for the configs that they derive for
draft models and parts of a model; there the plan is at hand already.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from vllm.config import get_current_vllm_config_or_none
from vllm.platforms import current_platform

from vllm_megamoe.checkpoint.survey import Survey
from vllm_megamoe.environment import hccl_buffsize, wrong_variables
from vllm_megamoe.errors import ConfigError
from vllm_megamoe.lanes import Lane, last_words, running_lane, shutdown, untested_here, working
from vllm_megamoe.lanes.carried import Carried
from vllm_megamoe.lanes.memory import memory_warning
from vllm_megamoe.lanes.quant_config import NAME, MegaMoeConfig, read_side_files
from vllm_megamoe.plan.facts import EngineFacts
from vllm_megamoe.plan.folder import survey_served
from vllm_megamoe.plan.model import DraftModel, ModelFacts, Speculation, read_model
from vllm_megamoe.plan.options import Options
from vllm_megamoe.plan.placement import placed
from vllm_megamoe.plan.plan import make_plan
from vllm_megamoe.plan.screen import render
from vllm_megamoe.plan.verdict import Violation, rejection_of

logger = logging.getLogger(__name__)

_MARK = "_vllm_megamoe_wrapped"


def install() -> None:
    """Wrap the platform's hook; a second call does nothing."""
    platform = type(current_platform)
    original: Callable[[Any], None] = current_platform.check_and_update_config
    if getattr(platform, _MARK, False):
        return

    def check_and_update_config(cls: type, vllm_config: Any) -> None:
        ours = _asked_for(vllm_config)
        if ours:
            before_platform(vllm_config)
        original(vllm_config)
        if ours:
            after_platform(vllm_config)

    platform.check_and_update_config = classmethod(check_and_update_config)
    setattr(platform, _MARK, True)


def _asked_for(vllm_config: Any) -> bool:
    """Whether the engine runs our method; not where a checkpoint of a namesake's names its own."""
    model_config = vllm_config.model_config
    if model_config is None or model_config.quantization != NAME:
        return False
    if isinstance(vllm_config.quant_config, MegaMoeConfig):
        return True
    section = getattr(model_config.hf_config, "quantization_config", None) or {}
    return bool(section.get("quant_method") != NAME)


def before_platform(vllm_config: Any) -> None:
    """Plan the whole model, leave the plan on the quantisation config, and ready the environment.

    Raises:
        ConfigError: with every violated rule, before an engine process or a weight is touched; another class than ours
            stands behind the name.
    """
    config = _our_config(vllm_config)
    config.carried = config.carried or engines_plan()
    if config.carried is not None:
        return
    shutdown.install()
    options, wrong = Options.read(vllm_config.additional_config)
    wrong = [*wrong_variables(), *wrong]
    lane = _lane_or_refusal(wrong)
    if lane is not None:
        for warning in untested_here():
            logger.warning("megamoe: %s", warning)
        options, contradictions = lane.settle(vllm_config, options)
        wrong = list(dict.fromkeys([*wrong, *contradictions]))
    engine = _engine_or_refusal(vllm_config, options, wrong, own_rows=lane is not None and lane.OWN_ROWS)
    facts = read_served(vllm_config)
    for warning in facts.warnings:
        logger.warning("megamoe: %s", warning)
    for note in facts.notes:
        logger.info("megamoe: %s", note)
    speculation = read_speculation(vllm_config.speculative_config)
    surveys = read_headers_of(vllm_config, facts, speculation)
    wrong += map(str, other_backends(vllm_config, drafts=any(layer.draft for layer in facts.layers)))
    wrong += [str(problem) for found in surveys for problem in found.problems]
    parts = {name: layer.parts for found in reversed(surveys) for name, layer in found.layers.items()}
    layers, misplaced = placed(facts.layers, options.expert_placement, engine.ep_size)
    plan = make_plan(engine, layers, options, [*wrong, *misplaced])
    if full := memory_warning(vllm_config, facts, plan):
        logger.warning("megamoe: on the product's devices it would not fit: %s", full)
    own_drafts = speculation is not None and speculation.draft is not None
    config.carried = Carried(plan, facts.architecture, facts.known, facts.num_layers, own_drafts, parts=parts)
    if lane is not None:
        lane.prepare(vllm_config)
        lane.enter()
    last_words.listen()


def other_backends(vllm_config: Any, *, drafts: bool) -> Iterator[Violation]:
    """Flags that name a backend for the experts, which would never be asked.

    Args:
        vllm_config: as vLLM shows it.
        drafts: whether draft layers have experts of ours; vLLM gives these a backend of their own.
    """
    speculative = vllm_config.speculative_config if drafts else None
    found = {
        "--moe-backend": getattr(getattr(vllm_config, "kernel_config", None), "moe_backend", None),
        "--speculative-config moe_backend": getattr(speculative, "moe_backend", None),
    }
    for flag, value in found.items():
        if value not in (None, "auto"):
            yield Violation("experts", f"{flag} {value}", "auto: the operator is their backend", f"Drop {flag}.")


def after_platform(vllm_config: Any) -> None:
    """Show the plan; where the platform has changed what it was made from, make it from what holds now.

    vLLM's CPU platform turns chunked prefill off for latent attention where the processor has no AMX, and raises
    max_num_batched_tokens with it.

    Raises:
        ConfigError: with every rule that is violated now.
    """
    config = _our_config(vllm_config)
    carried = config.carried
    if carried is None or carried.shown:
        return
    plan = carried.plan
    engine = read_engine(vllm_config, own_rows=plan.engine.own_rows)
    if engine != plan.engine:
        plan = make_plan(engine, [layer.facts for layer in plan.layers], plan.options)
    folder = ""
    if plan.layers:
        # Imported here: it brings prometheus_client, which only engines of ours need.
        from vllm_megamoe.lanes import metrics

        alone = not _is_one_of_several_servers(vllm_config)
        folder = metrics.offer(tells=alone)
        if alone:
            logger.info("%s", render(plan))
    config.carried = replace(carried, plan=plan, shown=True, metrics=folder)


def _is_one_of_several_servers(vllm_config: Any) -> bool:
    """Whether this process is an API server beside others; the process that has started them has rank -1."""
    parallel = vllm_config.parallel_config
    return bool(parallel._api_process_count > 1 and parallel._api_process_rank >= 0)


def _our_config(vllm_config: Any) -> MegaMoeConfig:
    found = vllm_config.quant_config
    if isinstance(found, MegaMoeConfig):
        return found
    raise ConfigError(namesake(type(found)))


def namesake(holder: type | None) -> str:
    """What to say of another class behind our name, None for a method of vLLM's own."""
    who = "vLLM itself" if holder is None else f"{holder.__module__}.{holder.__qualname__}"
    return (
        f"--quantization {NAME}: the name belongs to {who} in this installation; expected "
        f"{MegaMoeConfig.__module__}.{MegaMoeConfig.__qualname__}. Uninstall the other package, or name the plugins to "
        f"load without it (VLLM_PLUGINS={NAME}); where vLLM itself has the name, install {working()}."
    )


def _lane_or_refusal(wrong: list[str]) -> Lane | None:
    try:
        return running_lane()
    except ConfigError as error:
        wrong.append(str(error))
        return None


def _engine_or_refusal(vllm_config: Any, options: Options, wrong: list[str], *, own_rows: bool) -> EngineFacts:
    """Facts of the engine, under limits that are known.

    Raises:
        ConfigError: a variable that limits hang on is wrong, so that no layer can be judged; with all of `wrong`.
    """
    try:
        options.chosen_profile  # noqa: B018
        return read_engine(vllm_config, own_rows=own_rows)
    except ConfigError as error:
        raise rejection_of(list(dict.fromkeys([*wrong, str(error)]))) from error


def engines_plan() -> Carried | None:
    """The plan of the engine whose model is being built in this process, None outside of one.

    vLLM makes a quantisation config anew for a draft model with a quantisation of its own, while the engine's config is
    the current one.
    """
    current = get_current_vllm_config_or_none()
    found = None if current is None else current.quant_config
    return found.carried if isinstance(found, MegaMoeConfig) else None


def read_engine(vllm_config: Any, sequence_parallel: bool | None = None, *, own_rows: bool = False) -> EngineFacts:
    """Facts of the engine from a VllmConfig.

    Args:
        vllm_config: complete or still under construction in `check_and_update_config`.
        sequence_parallel: what a layer says of its rows; None before any layer exists, where vLLM may already say that
            none splits them (its all2all backend decides).
        own_rows: the lane's word, see EngineFacts.
    """
    parallel, scheduler = vllm_config.parallel_config, vllm_config.scheduler_config
    together = parallel.tensor_parallel_size > 1 and parallel.data_parallel_size > 1
    if sequence_parallel is None and together and not parallel.use_sequence_parallel_moe:
        sequence_parallel = False
    return EngineFacts(
        dtype=str(vllm_config.model_config.dtype).removeprefix("torch."),
        tensor_parallel=parallel.tensor_parallel_size,
        data_parallel=parallel.data_parallel_size,
        pipeline_parallel=parallel.pipeline_parallel_size,
        prefill_context_parallel=getattr(parallel, "prefill_context_parallel_size", 1),
        expert_parallel=parallel.enable_expert_parallel,
        sequence_parallel=sequence_parallel,
        max_num_batched_tokens=scheduler.max_num_batched_tokens,
        own_rows=own_rows,
        lora=vllm_config.lora_config is not None,
        lora_targets=lora_targets(vllm_config.lora_config),
        eplb=parallel.enable_eplb,
        dual_batch_overlap=parallel.enable_dbo,
        hccl_buffsize_mb=hccl_buffsize(),
    )


def lora_targets(config: Any) -> tuple[str, ...]:
    """What LoRA is restricted to, from vLLM's LoRAConfig; empty without one, and without a restriction."""
    return tuple(getattr(config, "target_modules", None) or ())


def read_served(vllm_config: Any) -> ModelFacts:
    """The model's facts as vLLM would load it, by the same reading as the command line's.

    Raises:
        ConfigError: for a value of the config that is not what its key promises.
    """
    config = vllm_config.model_config.hf_config.to_dict()
    speculative = read_speculation(vllm_config.speculative_config)
    return read_model(config, vllm_config.quant_config.side_files, speculative=speculative)


def read_headers_of(vllm_config: Any, facts: ModelFacts, speculation: Speculation | None) -> list[Survey]:
    """What lies in the files of a local folder, then in a draft model's, from headers alone.

    A hub's files may not be here yet.
    """
    model = vllm_config.model_config
    if vllm_config.load_config.load_format == "dummy":
        return []
    folder = Path(model.model)
    if not folder.is_dir():
        logger.info("megamoe: the files of %s are looked at when they are loaded: no folder of that name", model.model)
        return []
    draft = None if speculation is None else speculation.draft
    layers = [layer for layer in facts.layers if not layer.draft or (speculation is not None and draft is None)]
    config, side_files = model.hf_config.to_dict(), vllm_config.quant_config.side_files
    found = [survey_served(folder, config, side_files, layers, facts.num_layers)]
    if draft is not None and any(layer.draft for layer in facts.layers) and Path(draft.name).is_dir():
        own = read_model(draft.config, draft.side_files)
        found.append(survey_served(Path(draft.name), draft.config, draft.side_files, own.layers, own.num_layers))
    return [survey for survey in found if survey is not None]


def read_speculation(config: Any) -> Speculation | None:
    """What speculation loads, from vLLM's SpeculativeConfig; None for None."""
    if config is None:
        return None
    target, draft = config.target_model_config, config.draft_model_config
    if draft is None or draft is target or draft.model in (target.model, target.model_weights):
        return Speculation(config.method)
    quantization = config.quantization or ""
    side_files = read_side_files(draft.model, draft.revision)
    return Speculation(config.method, DraftModel(draft.model, draft.hf_config.to_dict(), side_files, quantization))
