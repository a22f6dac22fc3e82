"""The quantization config behind `--quantization megamoe`: MoE layers are ours, all others the checkpoint's own.

VllmConfig holds one instance per engine and pickles it to engine core and workers; so it is also what carries the
engine's plan to them. A draft model with a quantisation of its own gets another instance, without a plan.
"""

import copy
import functools
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from vllm.model_executor.layers.quantization import QUANTIZATION_METHODS, get_quantization_config
from vllm.model_executor.layers.quantization.base_config import QuantizationConfig, QuantizeMethodBase
from vllm.transformers_utils.repo_utils import get_hf_file_to_dict

from vllm_megamoe.checkpoint.recognise import SIDE_FILES, is_own, source_section
from vllm_megamoe.errors import ConfigError
from vllm_megamoe.lanes import running_lane

if TYPE_CHECKING:
    from vllm_megamoe.lanes.carried import Carried

logger = logging.getLogger(__name__)

NAME = "megamoe"
_KEYS = {"quant_method"}
_OWN = {"answering", "inner", "_packed_modules_mapping"}

UNUSED_SUFFIXES = (
    *(f".{part}_proj.kv_cache_{number}" for part in "kv" for number in ("scale", "offset")),
    *(f".fa_{part}.{number}" for part in "qkv" for number in ("scale", "offset")),
    *(f".indexer.{part}_rot" for part in "qk"),
)
"""msModelSlim's tensors of a quantised KV cache (C8), attention (FAKQuant) and indexer, beside whose codes are none:
vllm-ascend 0.30.0rc2, quantization/configs/modelslim_config.py, get_cache_scale_mapper."""


class MegaMoeConfig(QuantizationConfig):  # type: ignore[misc]
    """Config of a checkpoint that the user asked to serve through the operator.

    Args:
        section: the checkpoint's `quantization_config`, None when it has none.

    Attributes:
        section: as given.
        side_files: the checkpoint's files beside config.json that describe a quantisation, by name.
        carried: the engine's plan, None until the config stage has made it.
    """

    def __init__(self, section: dict[str, Any] | None = None) -> None:
        self.section = section
        self.side_files: dict[str, dict[str, Any]] = {}
        self.carried: Carried | None = None
        super().__init__()

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Arrive in another process of the engine, which the lane may have to ready."""
        self.__dict__.update(state)
        if self.carried is not None:
            running_lane().enter()

    def get_name(self) -> str:
        """Ours; where the platform's code asks for names of its own, that of the config which answers for us."""
        answers = self.inner is not None and self.answering is self.inner
        return str(self.inner.get_name()) if answers and self.inner is not None else NAME

    def __getattr__(self, name: str) -> Any:
        """What the platform's code asks its own configs for, and vLLM none (Lane.answering_config)."""
        known = self.__dict__
        # Without a section this object is still being made, or unpickled.
        answering = None if name.startswith("__") or "section" not in known or name in _OWN else self.answering
        if answering is None:
            raise AttributeError(f"{type(self).__name__} has no {name!r}")
        return getattr(answering, name)

    @classmethod
    def get_min_capability(cls) -> int:
        return 0

    def get_supported_act_dtypes(self) -> list[torch.dtype]:
        """All float dtypes: vLLM's own check would name one violation only, ours names all."""
        return [torch.bfloat16, torch.float32, torch.float16]

    @staticmethod
    def get_config_filenames() -> list[str]:
        """None: vLLM then builds this class without arguments for a checkpoint that has no quantization_config."""
        return []

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "MegaMoeConfig":
        bare = config.get("quant_method") == NAME and not is_own(config)
        unknown = sorted(set(config) - _KEYS) if bare else []
        if unknown:
            raise ConfigError(
                f"quantization_config with quant_method {NAME!r} has unknown keys {unknown}; expected quant_method "
                "alone (BF16 experts). Options of a run go into --additional-config."
            )
        return cls(config)

    @classmethod
    def override_quantization_method(
        cls, hf_quant_cfg: dict[str, Any], user_quant: str | None, hf_config: Any = None
    ) -> str | None:
        """Take a checkpoint that names another method only if the user said megamoe."""
        return NAME if user_quant == NAME else None

    def maybe_update_config(self, model_name: str, hf_config: Any = None, revision: str | None = None) -> None:
        """Read the side files; with them the lane makes the inner config. vLLM calls this before it asks anything."""
        self.side_files = read_side_files(model_name, revision)
        if self.inner is not None:
            self.inner.maybe_update_config(model_name, hf_config=hf_config, revision=revision)

    @functools.cached_property
    def inner(self) -> QuantizationConfig | None:
        """vLLM's or the lane's config of all layers without experts.

        None where the checkpoint has no quantisation of its own, or none that a class reads; and on a platform without
        a lane, which the start-up refuses with all else that is wrong.
        """
        try:
            lane = running_lane()
        except ConfigError:
            return None
        made: QuantizationConfig | None = lane.inner_config(source_section(self.section), self.side_files)
        if made is not None:
            made.packed_modules_mapping = self._packed_modules_mapping
        return made

    @functools.cached_property
    def answering(self) -> Any:
        """See Lane.answering_config; None on a platform without a lane."""
        try:
            return running_lane().answering_config(self.inner)
        except ConfigError:
            return None

    def apply_vllm_mapper(self, hf_to_vllm_mapper: Any) -> None:
        if self.inner is not None:
            self.inner.apply_vllm_mapper(hf_to_vllm_mapper)

    @property
    def packed_modules_mapping(self) -> dict[str, list[str]]:
        """Which checkpoint modules vLLM fuses; models set it, the inner config needs it."""
        return self._packed_modules_mapping

    @packed_modules_mapping.setter
    def packed_modules_mapping(self, mapping: dict[str, list[str]]) -> None:
        self._packed_modules_mapping = mapping
        # The base class sets it before the files are read that the inner config is made from.
        made = self.__dict__.get("inner")
        if made is not None:
            made.packed_modules_mapping = mapping

    def get_cache_scale_mapper(self) -> Any:
        """New names of the scales of a quantised KV cache; vLLM applies it to every name of the checkpoint."""
        return (QuantizationConfig if self.inner is None else self.inner).get_cache_scale_mapper()

    def get_checkpoint_weight_mapper(self) -> Any:
        """What is left out of the checkpoint: scales of a quantised KV cache where no class uses them.

        Not every `g_idx`, as vLLM's default has it: it tells the group of each input of an expert (GPTQ).
        """
        from vllm.model_executor.models.utils import WeightsMapper

        return WeightsMapper(orig_to_new_suffix=dict.fromkeys(UNUSED_SUFFIXES) if self.inner is None else {})

    @property
    def _ignore_unexpected_suffixes(self) -> tuple[str, ...]:
        """Tensors that vLLM drops where the model has no place for them."""
        inner = QuantizationConfig if self.inner is None else self.inner
        return tuple(inner._ignore_unexpected_suffixes)

    def get_quant_method(
        self, layer: torch.nn.Module, prefix: str, tid2eid: torch.Tensor | None = None
    ) -> QuantizeMethodBase | None:
        """The layer's method; `tid2eid` is vllm-ascend's, and its routers have it too."""
        del tid2eid
        # Imported here: models import these modules long before they ask, but the API server never needs them.
        from vllm_megamoe.lanes import model_layers

        return model_layers.method_of(layer, prefix, self)


def vllms_config(section: Mapping[str, Any] | None) -> QuantizationConfig | None:
    """The config that vLLM itself would make of this `quantization_config`, the flag apart.

    None where it has no such method, or refuses the checkpoint (its classes are made for other platforms); the log says
    why.
    """
    method = str((section or {}).get("quant_method") or "")
    if not section or method == NAME:
        return None
    try:
        for name in QUANTIZATION_METHODS:
            taken = name != NAME and get_quantization_config(name).override_quantization_method(dict(section), None)
            if taken:
                method = taken
                break
        # Some of vLLM's classes change what they are given.
        return get_quantization_config(method).from_config(copy.deepcopy(dict(section)))
    except Exception as error:  # any class may refuse in its own way, and layers without experts can do without it
        logger.warning("megamoe: vLLM refuses quantization_config with quant_method %r: %s", method, error)
        return None


def read_side_files(model: str, revision: str | None) -> dict[str, dict[str, Any]]:
    """The quantisation descriptions that a checkpoint carries, by file name; absent ones are left out.

    Read the way vLLM reads files of a local folder or a hub repository.
    """
    found = {file: get_hf_file_to_dict(file, model, revision) for file in SIDE_FILES}
    return {file: content for file, content in found.items() if content is not None}
