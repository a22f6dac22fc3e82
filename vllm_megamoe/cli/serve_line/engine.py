"""What vLLM would be told by a command line, with vLLM's defaults (vLLM 0.32): engine, speculation, changed config."""

from collections.abc import Callable, Mapping
from typing import Any

from vllm_megamoe.checkpoint.recognise import SECTION_KEYS
from vllm_megamoe.cli.serve_line.line import ServeLine
from vllm_megamoe.errors import ConfigError
from vllm_megamoe.plan.facts import EngineFacts
from vllm_megamoe.plan.model import DraftModel, Speculation
from vllm_megamoe.plan.read_config.architectures import MTP_CLASSES, family_of

FEATURES = {"lora": "enable-lora", "eplb": "enable-eplb", "dual_batch_overlap": "enable-dbo"}
"""Field of EngineFacts -> the switch that turns it on."""

_DTYPES = {"half": "float16", "float": "float32"}


def read_engine(line: ServeLine, model_dtype: str, max_num_batched_tokens: int) -> EngineFacts:
    """Facts of the engine that the line would start.

    Args:
        line: the command line.
        model_dtype: what `--dtype auto` means for this model.
        max_num_batched_tokens: where the line does not say; vLLM itself chooses by platform.

    Raises:
        ConfigError: for a size that is no number.
    """
    dtype = line.value("dtype") or "auto"
    return EngineFacts(
        dtype=model_dtype if dtype == "auto" else _DTYPES.get(dtype, dtype),
        tensor_parallel=line.number("tensor-parallel-size", 1),
        data_parallel=line.number("data-parallel-size", 1),
        pipeline_parallel=line.number("pipeline-parallel-size", 1),
        prefill_context_parallel=line.number("prefill-context-parallel-size", 1),
        expert_parallel=bool(line.switch("enable-expert-parallel")),
        max_num_batched_tokens=line.number("max-num-batched-tokens", max_num_batched_tokens),
        lora=bool(line.switch(FEATURES["lora"])),
        lora_targets=line.all_values("lora-target-modules"),
        eplb=bool(line.switch(FEATURES["eplb"])),
        dual_batch_overlap=bool(line.switch(FEATURES["dual_batch_overlap"])),
    )


_FLAGS = {"spec-method": "method", "spec-model": "model", "spec-tokens": "num_speculative_tokens"}


def speculation_settings(line: ServeLine) -> dict[str, Any] | None:
    """What `--speculative-config` and its short forms say together; None without any of them.

    Raises:
        ConfigError: the same setting in two forms, which vLLM rejects.
    """
    settings = line.json("speculative-config")
    given = {flag: line.value(flag) for flag in _FLAGS if line.value(flag) is not None}
    if settings is None and not given:
        return None
    twice = [flag for flag in given if _FLAGS[flag] in (settings or {})]
    if twice:
        raise ConfigError(
            f"--{twice[0]} beside --speculative-config with {_FLAGS[twice[0]]!r}; expected one of them. Drop one."
        )
    return {**(settings or {}), **{_FLAGS[flag]: value for flag, value in given.items()}}


def read_speculation(settings: Mapping[str, Any], find: Callable[[str], DraftModel | None]) -> Speculation:
    """What speculation loads, by the rules of vLLM's SpeculativeConfig.

    Args:
        settings: as `speculation_settings` gives them.
        find: the config files of a draft model by its name; None where they are not here.
    """
    model, method = str(settings.get("model") or ""), str(settings.get("method") or "")
    if not method:
        method = "ngram" if model in ("ngram", "[ngram]") else "custom_class" if _is_import(model) else "draft_model"
    if method == "[ngram]":
        method = "ngram"
    if method.endswith("_mtp"):
        method = "mtp"
    if not model or method in ("ngram", "ngram_gpu", "suffix", "custom_class", "extract_hidden_states"):
        return Speculation(method)
    draft = find(model)
    if draft is None:
        return Speculation(method, DraftModel(model, {}, {}, str(settings.get("quantization") or "")))
    return Speculation(_detected(method, model, draft.config), draft)


def _is_import(model: str) -> bool:
    parts = model.split(".")
    return "/" not in model and len(parts) > 1 and all(part.isidentifier() for part in parts)


def _detected(method: str, model: str, config: Mapping[str, Any]) -> str:
    """vLLM takes the method from the draft model where the user's word leaves it open."""
    if method in ("eagle", "eagle3", "dflash", "dspark"):
        return method
    for sign, found in (("eagle-", "eagle"), ("eagle3", "eagle3"), ("dflash", "dflash"), ("dspark", "dspark")):
        if sign in model.lower():
            return found
    architectures = config.get("architectures")
    names = [str(name) for name in architectures] if isinstance(architectures, list) else []
    family = family_of(*names)
    # A config of a family with MTP layers is rewritten to that of its MTP layers.
    has_mtp = any(name in MTP_CLASSES for name in names) or (family is not None and family.drafts is not None)
    return "mtp" if has_mtp else method


def override(config: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A config as `--hf-overrides` changes it (ModelConfig.__post_init__).

    An object for a section that is a config of its own changes only its keys; any other value replaces what was there.
    """
    changed = dict(config)
    for key, value in changes.items():
        below = changed.get(key)
        section = key.endswith("_config") and key not in SECTION_KEYS
        if section and isinstance(value, Mapping) and isinstance(below, Mapping):
            changed[key] = override(below, value)
        else:
            changed[key] = value
    return changed
