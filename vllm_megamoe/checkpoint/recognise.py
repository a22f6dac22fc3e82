"""Name the format of a checkpoint's experts from its config files alone: which file counts, and every expert asked.

Sources of the key names: the files that the tools write (compressed-tensors, transformers' fp8, ModelOpt,
msModelSlim, AutoRound, GPTQ, AWQ, Quark), and the readers of those that vLLM 0.32 has.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from vllm_megamoe.checkpoint import readers
from vllm_megamoe.checkpoint.compressed_tensors import compressed_tensors_reader
from vllm_megamoe.checkpoint.described import Described
from vllm_megamoe.checkpoint.formats import BF16, OWN_METHOD, ExpertsFormat, Unknown, one_format
from vllm_megamoe.checkpoint.names import names_of, projections_of, within_layer
from vllm_megamoe.checkpoint.readers import Reader, listed_as
from vllm_megamoe.errors import ConfigError

MSMODELSLIM_FILES = ("quant_model_description.json", "quant_model_description_w8a8_dynamic.json")
MODELOPT_FILE = "hf_quant_config.json"
SIDE_FILES = (*MSMODELSLIM_FILES, MODELOPT_FILE)

Section = Mapping[str, Any]
SideFiles = Mapping[str, Mapping[str, Any]]

SECTION_KEYS = ("quantization_config", "compression_config")
"""Where config.json describes a quantisation: vLLM takes the second where the first is absent (get_quant_config)."""

_METHODS: dict[str, Callable[[Described], Reader]] = {
    "compressed-tensors": compressed_tensors_reader,
    "mxfp8": readers.mxfp8_reader,
    "mxfp4": readers.mxfp4_reader,
    "gpt_oss_mxfp4": readers.mxfp4_reader,
    "gptq": readers.gptq_reader,
    "auto_gptq": readers.gptq_reader,
    "gptq_marlin": readers.gptq_reader,
    "awq": readers.awq_reader,
    "auto_awq": readers.awq_reader,
    "awq_marlin": readers.awq_reader,
    "auto-round": readers.auto_round_reader,
    "intel/auto-round": readers.auto_round_reader,
    "inc": readers.auto_round_reader,
    "quark": readers.quark_reader,
}
_FP8 = ("fp8", "deepseek_v4_fp8")
_MSMODELSLIMS_OWN = ("ascend", "msmodelslim", "megamoe")
"""Words of a section that stand beside msModelSlim's description without another meaning: vllm-ascend's name of it."""


class FormatOf(Protocol):
    """From the prefix of a layer's experts, or of its shared MLP, to their format.

    Args:
        prefix: as vLLM calls it (`model.layers.3.mlp.experts`).
        experts: number of routed experts; 0 for a shared MLP.
        gated: whether there is a gate projection beside up and down.
    """

    def __call__(self, prefix: str, experts: int = 0, gated: bool = True) -> ExpertsFormat: ...


def section_of(config: Mapping[str, Any]) -> Section | None:
    """What config.json says about the quantisation, of the whole model or of a section such as `text_config`.

    Raises:
        ConfigError: it is no object.
    """
    parts = [config, *(part for key, part in config.items() if key.endswith("_config") and isinstance(part, Mapping))]
    for key in SECTION_KEYS:
        for part in parts:
            if isinstance(part.get(key), Mapping) and part[key]:
                return dict(part[key])
            if part.get(key) and not isinstance(part[key], Mapping):
                raise Described(part, "config.json").wrong(key, "an object")
    return None


def experts_format(
    quantization_config: Section | None,
    names: Sequence[str],
    side_files: SideFiles | None = None,
    expert_dtype: str = "",
) -> ExpertsFormat:
    """The format of the experts called `names`.

    Args:
        quantization_config: the section of config.json, None when there is none.
        names: module names of expert projections, such as `model.layers.0.mlp.experts.3.gate_proj`.
        side_files: parsed files of the checkpoint beside config.json, by name (see SIDE_FILES).
        expert_dtype: config.json's key of that name (DeepSeek-V4).

    Raises:
        ConfigError: a value is not what its key promises.
    """
    read = make_reader(quantization_config, side_files, expert_dtype)
    return one_format({within_layer(name): read(names_of(name)) for name in names})


def formats_of(config: Mapping[str, Any], side_files: SideFiles | None = None) -> FormatOf:
    """The formats of a model's layers.

    Args:
        config: config.json as a mapping.
        side_files: parsed files of the checkpoint beside config.json, by name (see SIDE_FILES).

    Raises:
        ConfigError: a value is not what its key promises.
    """
    section, files = section_of(config), side_files or {}
    text = config.get("text_config")
    parts = [part for part in (text, config, section) if isinstance(part, Mapping)]
    read = make_reader(section, files, str(_first(parts, "expert_dtype") or ""))
    num_layers = _first(parts, "num_hidden_layers")
    layers = num_layers if isinstance(num_layers, int) else None
    named = _experts_named([section, files])

    def format_of(prefix: str, experts: int = 0, gated: bool = True) -> ExpertsFormat:
        every = range(experts)
        # One that no file names speaks for all of those.
        other = next((n for n in every if n not in named), 0) if named is not None else 0
        asked = every if named is None else [n for n in every if n in named or n == other]
        return one_format({one: read(names) for one, names in projections_of(prefix, asked, layers, gated).items()})

    return format_of


def make_reader(section: Section | None, side_files: SideFiles | None, expert_dtype: str = "") -> Reader:
    """The reader of the file that counts: msModelSlim's, else config.json's section, else ModelOpt's, else BF16.

    ModelOpt's file beside a section says the same or less: vLLM reads the section alone then.

    Raises:
        ConfigError: a value is not what its key promises, or two tools describe the same weights.
    """
    files = side_files or {}
    if section and is_own(section):
        source = make_reader(source_section(section), side_files, expert_dtype)
        return readers.own_reader(Described(section, "config.json: quantization_config"), source)
    if description := described_by_msmodelslim(files, section):
        return readers.msmodelslim_reader(description)
    if section:
        return _of_section(Described(section, "config.json: quantization_config"), expert_dtype)
    if files.get(MODELOPT_FILE):
        return readers.modelopt_reader(Described(files[MODELOPT_FILE], MODELOPT_FILE))
    return lambda names: BF16


def is_own(section: Section) -> bool:
    """Whether it is of this package's own format; the method's bare name stands for BF16 experts."""
    return section.get("quant_method") == OWN_METHOD and "layers" in section


def source_section(section: Section | None) -> Section | None:
    """What a section says of layers that are not in this package's own format: itself where it is another tool's."""
    if section is None or not is_own(section):
        return section
    source = section.get("source")
    return source if isinstance(source, Mapping) else None


def described_by_msmodelslim(files: SideFiles, section: Section | None = None) -> Mapping[str, Any]:
    """msModelSlim's description of every tensor, empty where there is none.

    The tool writes one file and takes the section out of config.json. A second description is of other weights; its
    own word in a section (`ascend`) is none.

    Raises:
        ConfigError: two descriptions, with the name of both.
    """
    found = {name: files[name] for name in MSMODELSLIM_FILES if files.get(name)}
    method = str((section or {}).get("quant_method") or "").lower()
    both = [name for i, name in enumerate(found) if i == 0 or found[name] != next(iter(found.values()))]
    if found and section and method not in _MSMODELSLIMS_OWN:
        both.append(f"config.json: quantization_config (quant_method {method or 'not named'!r})")
    if len(both) > 1:
        raise ConfigError(
            f"the quantisation is described twice, by {' and by '.join(both)}; expected one description. Delete the "
            "one that is of other weights."
        )
    return next(iter(found.values()), {})


def _of_section(section: Described, expert_dtype: str) -> Reader:
    # vLLM spells it so before it looks the method up (model_arch_config_convertor.py).
    method = section.text("quant_method").lower().replace("compressed_tensors", "compressed-tensors")
    if method == "megamoe":
        return lambda names: BF16
    if method in _METHODS:
        return _METHODS[method](section)
    if method in _FP8:
        return readers.fp8_reader(section, expert_dtype)
    # vLLM puts a ModelOpt file in the place of an absent section, with its own nesting.
    if method.startswith("modelopt") or section.has("quant_algo") or section.has("quantization"):
        return readers.modelopt_reader(section)
    return readers.everything_as(Unknown(method or "an unnamed quantisation"), section, *readers.LEFT_OUT)


def known_methods() -> tuple[str, ...]:
    """Every word of `quant_method` that is read here, and msModelSlim's file, for a refusal."""
    return (*sorted({*_METHODS, *_FP8, "modelopt"}), f"msModelSlim's {MSMODELSLIM_FILES[0]}")


_EXPERT_NUMBER = re.compile(r"experts\\?\.(\d+)(?=\\?\.|$)")
_CLOSED_NUMBER = re.compile(r"experts\\?\.(\d+)(?=\\?\.)")
"""Within a pattern: a number at its end could go on."""
_LAYER_NUMBER = re.compile(r"layers\\?\.(?:\d+|\\d\+|\([\d|]*\)|\[[\d-]*\][+*]?)(?=\\?\.|$|\*)")
_PATTERN = re.compile(r"^re:|^[-+]:|[*?\[(\\|^$]")
# Pieces of a pattern that mean the same for each expert: words, `\.`, `.*`, `\d+` and the like, w1 to w3.
_ALIKE = re.compile(r"(?:[A-Za-z_:-]|\\\.|\.[*+]|\*|\\[dw]\+|\[0-9\]\+|\[\^\.\]\+|[()|$^]|w[123]|\bw\[123\])*")


def _experts_named(parts: Sequence[object]) -> set[int] | None:
    """Numbers of experts that the files may treat apart from the others; None when any expert may be.

    Experts that no file can tell apart have one format, so one of them speaks for all: models have thousands.
    """
    numbers: set[int] = set()
    for text in _texts(parts):
        numbers.update(int(number) for number in _EXPERT_NUMBER.findall(text))
        if _PATTERN.search(text):
            head, _, tail = _CLOSED_NUMBER.sub("", _LAYER_NUMBER.sub("", text)).partition("expert")
            # In front of the experts a bare dot stands for a dot; behind, it could stand for a digit.
            if not _ALIKE.fullmatch(re.sub(r"\\?\.[*+]?", "", head)) or not _ALIKE.fullmatch(tail):
                return None
    return numbers


def _texts(value: object) -> Iterator[str]:
    """Every key and text below a value of a config file."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from map(str, value)
        for each in value.values():
            yield from _texts(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _texts(each)


def unlisted(config: Mapping[str, Any], side_files: SideFiles | None, prefix: str) -> bool:
    """Whether a description that lists every tensor (msModelSlim's) has nothing of a layer's experts: they are BF16.

    Args:
        prefix: of the layer's experts, as vLLM calls it.
    """
    description = described_by_msmodelslim(side_files or {}, section_of(config))
    number = _first([config.get("text_config") or {}, config], "num_hidden_layers")
    projections = projections_of(prefix, [0], number if isinstance(number, int) else None)
    return bool(description) and all(listed_as(description, names) is None for names in projections.values())


def _first(parts: Sequence[Mapping[str, Any]], key: str) -> Any:
    return next((part[key] for part in parts if part.get(key)), None)


# How experts are called in checkpoints; used where the model's own names are not known yet.
_STYLES = ("mlp.experts.0.gate_proj", "block_sparse_moe.experts.0.w1", "ffn.experts.0.w1", "moe.gate_proj")
_PREFIXES = ("model.layers.{i}.", "model.language_model.layers.{i}.", "language_model.model.layers.{i}.", "layers.{i}.")
_EXPERT_WEIGHT = re.compile(r"\.experts\.\d+\..*\.weight(_packed)?$")


def surely_quantised(
    quantization_config: Section | None, num_layers: int, side_files: SideFiles | None = None
) -> ExpertsFormat | None:
    """The experts' format when no usual naming style leaves them out of the quantisation, else None.

    For a model whose own names are not known: it never rejects a checkpoint that may be fine.
    """
    description = described_by_msmodelslim(side_files or {}, quantization_config)
    # This tool lists every tensor, so the experts name themselves.
    listed = [name.rpartition(".")[0] for name in description if _EXPERT_WEIGHT.search(name)]
    if listed and (form := experts_format(None, listed, {MSMODELSLIM_FILES[0]: description})) != BF16:
        return form
    read = make_reader(quantization_config, side_files)
    names = [f"{p}{e}".format(i=i) for p in _PREFIXES for e in _STYLES for i in range(max(num_layers, 1))]
    found = {name: read(names_of(name)) for name in names}
    return None if BF16 in found.values() else one_format(found)
