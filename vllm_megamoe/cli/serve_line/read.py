"""How vLLM's flags are spelt, as far as a command line can be read without vLLM (vLLM 0.32, EngineArgs and `serve`).

Take a `vllm serve` line apart, as a shell and vLLM's own parser would (FlexibleArgumentParser of vLLM 0.32).
"""

import re
import shlex

from vllm_megamoe.cli.serve_line.line import Flag, ServeLine
from vllm_megamoe.errors import ConfigError

SHORT = {
    "-tp": "tensor-parallel-size",
    "-dp": "data-parallel-size",
    "-pp": "pipeline-parallel-size",
    "-pcp": "prefill-context-parallel-size",
    "-dcp": "decode-context-parallel-size",
    "-ep": "enable-expert-parallel",
    "-q": "quantization",
    "-cc": "compilation-config",
    "-sc": "speculative-config",
    "-dc": "diffusion-config",
    "-ac": "attention-config",
    "-asc": "api-server-count",
    "-n": "nnodes",
    "-r": "node-rank",
    "-dpn": "data-parallel-rank",
    "-dpr": "data-parallel-start-rank",
    "-dpl": "data-parallel-size-local",
    "-dpa": "data-parallel-address",
    "-dpp": "data-parallel-rpc-port",
    "-dpb": "data-parallel-backend",
    "-dph": "data-parallel-hybrid-lb",
    "-dpe": "data-parallel-external-lb",
    "-dpm": "data-parallel-multi-port-external-lb",
}

_SWITCH_PREFIXES = ("no-", "enable-", "disable-", "skip-", "trust-", "use-", "return-", "allow-credentials")

_SWITCHES = frozenset(
    {
        "help",
        "headless",
        "grpc",
        "enforce-eager",
        "async-scheduling",
        "exclude-tools-when-tool-choice-none",
        "cohere-is-reasoning-model",
        "log-error-stack",
        "tokens-only",
        "allow-deprecated-quantization",
        "sleep-mode-offload-cudagraph",
        "numa-bind",
        "dcp-q-replicate",
        "data-parallel-hybrid-lb",
        "data-parallel-external-lb",
        "data-parallel-multi-port-external-lb",
        "ray-workers-use-nsight",
        "kv-sharing-fast-prefill",
        "swa-bounded-replay",
        "language-model-only",
        "mm-encoder-only",
        "interleave-mm-strings",
        "mm-device-do-normalize",
        "fully-sharded-loras",
        "specialize-active-lora",
        "kv-cache-metrics",
        "cudagraph-metrics",
        "jit-monitor-verbose",
        "long-prefill-token-threshold-adaptive",
        "scheduler-reserve-full-isl",
        "aggregate-engine-logging",
        "fail-on-environ-validation",
    }
)

_WITH_VALUE = frozenset({"disable-access-log-for-endpoints"})

_MANY = frozenset(
    {
        "lora-modules",
        "api-key",
        "allowed-media-domains",
        "served-model-name",
        "sleep-preserve-parameter-names",
        "logits-processors",
        "ignore-patterns",
        "numa-bind-nodes",
        "numa-bind-cpus",
        "kv-cache-dtype-skip-layers",
        "cpu-offload-params",
        "offload-params",
        "lora-target-modules",
        "collect-detailed-traces",
        "cudagraph-capture-sizes",
    }
)


def most_values(name: str) -> int:
    """How many words behind a flag may be its values: 0 for a switch, 1, or many.

    A flag that this table does not know takes one, unless its name says that it is a switch.
    """
    if name in _MANY:
        return 1_000
    if name in _WITH_VALUE:
        return 1
    return 0 if name in _SWITCHES or name.startswith(_SWITCH_PREFIXES) else 1


_ASSIGNMENT = re.compile(r"(?P<name>[A-Za-z_]\w*)=(?P<value>.*)", re.DOTALL)
_OPERATOR = re.compile(r"[|&;]+|\d*>.*|<.*")
_FLAG = re.compile(r"--?[A-Za-z]")
_SHELL_WORDS = frozenset({"export", "env"})

_EXAMPLE = 'such as "vllm serve MODEL --tensor-parallel-size 8 --enable-expert-parallel"'


def read_line(text: str) -> ServeLine:
    """Read a command line.

    Args:
        text: one command, possibly with assignments in front, backslashes at line ends and a redirection behind.

    Raises:
        ConfigError: for quotes that do not close, a line that starts no vLLM server, one with another command in front,
            or one without a model.
    """
    words = _split(text)
    start, command = _find_command(words)
    environment, before = _front(words[:start])
    rest, after = _cut(words[start + len(command) :])
    flags, models = _flags(rest)
    named = [flag.values[0] for flag in flags if flag.name == "model" and flag.values]
    models = named or models
    if len(models) != 1:
        came = "no model" if not models else f"several models ({', '.join(models)})"
        raise ConfigError(f"The command line has {came}; write it directly behind `vllm serve`, {_EXAMPLE}.")
    flags = [flag for flag in flags if flag.name != "model"]
    return ServeLine(tuple(environment), tuple(before), tuple(command), models[0], tuple(flags), tuple(after))


def _split(text: str) -> list[str]:
    try:
        return shlex.split(re.sub(r"\\\r?\n", " ", text))
    except ValueError as error:
        raise ConfigError(
            f"The command line cannot be split into words: {error}. Expected quotes that close, {_EXAMPLE}."
        ) from error


def _find_command(words: list[str]) -> tuple[int, list[str]]:
    for start, word in enumerate(words):
        base = word.rsplit("/", 1)[-1]
        if base == "vllm" and words[start + 1 : start + 2] == ["serve"]:
            return start, words[start : start + 2]
        module = words[start + 2] if len(words) > start + 2 else ""
        if (
            base.startswith("python")
            and words[start + 1 : start + 2] == ["-m"]
            and re.fullmatch(r"vllm\..*api_server", module)
        ):
            return start, words[start : start + 3]
    raise ConfigError(f"The command line starts no vLLM server; expected one line {_EXAMPLE}.")


def _front(words: list[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """Assignments, which may be commands of their own, and the words that the command is started through."""
    environment: list[tuple[str, str]] = []
    before: list[str] = []
    for word in words:
        found = _ASSIGNMENT.fullmatch(word.rstrip(";"))
        if found and before[-1:] not in (["-e"], ["--env"]):
            environment.append((found["name"], found["value"]))
        elif before and (_OPERATOR.fullmatch(word) or word.endswith(";")):
            raise ConfigError(
                f"The command line has another command in front of vLLM's ({' '.join([*before, word])}); expected one "
                f"line {_EXAMPLE}. Leave the others out."
            )
        elif word not in _SHELL_WORDS and not _OPERATOR.fullmatch(word):
            before.append(word)
    return environment, before


def _cut(words: list[str]) -> tuple[list[str], list[str]]:
    end = next((i for i, word in enumerate(words) if _OPERATOR.fullmatch(word)), len(words))
    return words[:end], words[end:]


def _flags(words: list[str]) -> tuple[list[Flag], list[str]]:
    flags: list[Flag] = []
    models: list[str] = []
    at = 0
    while at < len(words):
        word = words[at]
        if not _FLAG.match(word):
            models.append(word)
            at += 1
            continue
        name, path, value = _name(word)
        end = at + 1
        if value is None:
            most = 1 if path else most_values(name)
            while end < len(words) and end - at <= most and not _FLAG.match(words[end]):
                end += 1
        values = (value,) if value is not None else tuple(words[at + 1 : end])
        flags.append(Flag(name, values, tuple(words[at:end]), path))
        at = end
    return flags, models


def _name(word: str) -> tuple[str, tuple[str, ...], str | None]:
    """Long name, dotted path and value behind `=` of a word that begins with a dash."""
    name, equals, value = word.partition("=")
    name, *path = name.split(".")
    name = SHORT.get(name, name).lstrip("-").replace("_", "-")
    return name, tuple(path), value if equals else None
