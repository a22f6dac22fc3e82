"""What the user asked `plan` for; the megamoe options among it are checked as `--additional-config` checks them."""

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

from vllm_megamoe.errors import ConfigError
from vllm_megamoe.plan.options import KEY, Options


@dataclass(frozen=True, slots=True)
class Place:
    """Where and how a plan is to be served; None where not given.

    Attributes:
        device: name of a device.
        device_memory: GiB of one, in place of the device's own.
        memory_utilization: as vLLM's --gpu-memory-utilization.
        max_model_len, max_num_seqs, kv_cache_dtype: as vLLM's flags.
        stored_as: name of a format that the checkpoint does not have yet.
        memory_bandwidth, link_bandwidth: 10^9 bytes a second.
        peak: 10^12 operations a second.
        router_skew: exponent of the router's power law.
        explain: whether to show how the bounds come about.
    """

    device: str | None = None
    device_memory: float | None = None
    memory_utilization: float | None = None
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    kv_cache_dtype: str | None = None
    stored_as: str | None = None
    memory_bandwidth: float | None = None
    link_bandwidth: float | None = None
    peak: float | None = None
    router_skew: float = 0.0
    explain: bool = False


@dataclass(frozen=True, slots=True)
class Request:
    """Arguments of `plan` beside the model.

    Attributes:
        options: megamoe options that were given, by the names of `--additional-config`.
        tensor_parallel, data_parallel: sizes, None where not given.
        max_num_batched_tokens: rows of a step; None for vLLM's own default of a server.
        dtype: `auto` for the config's.
        draft: whether to plan the draft (MTP) layers of the checkpoint too; a line with speculation does it by itself.
        line: a `vllm serve` line to read, None for none.
        place: device, memory and what is to be served there.
    """

    options: Mapping[str, Any]
    tensor_parallel: int | None = None
    data_parallel: int | None = None
    max_num_batched_tokens: int | None = None
    dtype: str = "auto"
    draft: bool = False
    line: str | None = None
    place: Place = Place()


@dataclass(frozen=True, slots=True)
class Target:
    """What a search of splits is for.

    Attributes:
        devices: to be split, None where not given.
        milliseconds: most of a decode step, None for no target.
        sequences: fewest of full length that must fit, over all ranks.
    """

    devices: int | None
    milliseconds: float | None = None
    sequences: int = 1


def megamoe_options(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Those that are not None, checked as `--additional-config` checks them.

    Raises:
        ConfigError: with every wrong value, in this command's spelling.
    """
    given = {name: parameters[name] for name in Options.model_fields if parameters.get(name) is not None}
    _, wrong = Options.read({KEY: given})
    if wrong:
        raise ConfigError("\n".join(_as_flag(sentence, given) for sentence in wrong))
    return given


def _as_flag(sentence: str, given: Mapping[str, Any]) -> str:
    """`additional_config['megamoe']: use_case = 'x'; ...` in this command's spelling, with the nearest value."""
    sentence = sentence.removeprefix(f"additional_config[{KEY!r}]: ")
    found = re.match(r"(?P<name>\w+) ?= ?(?P<rest>.*)", sentence, re.DOTALL)
    if found is None or found["name"] not in given:
        return sentence
    name, text = found["name"], f"--{found['name'].replace('_', '-')} {found['rest']}"
    near = difflib.get_close_matches(str(given[name]), _choices(Options.model_fields[name].annotation), 1, 0.4)
    if near and "did you mean" not in text:
        text = f"{text.rstrip('.')}; did you mean {near[0]!r}?"
    return text


def _choices(annotation: Any) -> list[str]:
    """The strings of a Literal, also inside a union with None."""
    inner = get_args(annotation)
    return [text for each in inner for text in ([each] if isinstance(each, str) else _choices(each))]
