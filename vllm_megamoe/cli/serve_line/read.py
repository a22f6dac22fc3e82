"""Take a `vllm serve` line apart, as a shell and vLLM's own parser would (FlexibleArgumentParser of vLLM 0.32)."""

import re
import shlex

from vllm_megamoe.cli.serve_line.config_file import config_words
from vllm_megamoe.cli.serve_line.flags import long_name, most_values
from vllm_megamoe.cli.serve_line.line import Flag, ServeLine
from vllm_megamoe.errors import ConfigError

_ASSIGNMENT = re.compile(r"(?P<name>[A-Za-z_]\w*)=(?P<value>.*)", re.DOTALL)
_OPERATOR = re.compile(r"[|&;]+|\d*>.*|<.*")
_LEVEL = re.compile(r"-O(=?(?P<value>.+))?")
_FLAG = re.compile(r"--?[A-Za-z]")
_SHELL_WORDS = frozenset({"export", "env"})

_EXAMPLE = 'such as "vllm serve MODEL --tensor-parallel-size 8 --enable-expert-parallel"'


def read_line(text: str) -> ServeLine:
    """Read a command line.

    Args:
        text: one command, possibly with assignments in front, backslashes at line ends and a redirection behind.

    Raises:
        ConfigError: for quotes that do not close, a line that starts no vLLM server, one with another command in front,
            one without a model, a misspelt flag, or a `--config` file that cannot be read.
    """
    words = _split(text)
    start, command = _find_command(words)
    environment, before = _front(words[:start])
    rest, after = _cut(words[start + len(command) :])
    flags, models = _flags(rest)
    file, flags = _with_config_file(flags, bool(models))
    named = [flag.values[0] for flag in flags if flag.name == "model" and flag.values]
    models = named or models
    if len(models) != 1:
        came = "no model" if not models else f"several models ({', '.join(models)})"
        raise ConfigError(f"The command line has {came}; write it directly behind `vllm serve`, {_EXAMPLE}.")
    flags = [flag for flag in flags if flag.name != "model"]
    return ServeLine(tuple(environment), tuple(before), tuple(command), models[0], tuple(flags), tuple(after), file)


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


def _with_config_file(flags: list[Flag], has_model: bool) -> tuple[str, list[Flag]]:
    """The file of `--config`, empty for none, and its flags in front of the line's, which win over them.

    `has_model` says whether the line names a model behind `serve`.
    """
    files = [flag.values[0] if flag.values else "" for flag in flags if flag.name == "config"]
    if len(files) > 1:
        raise ConfigError(f"The command line has --config {len(files)} times; vLLM takes one. Join the files.")
    if not files:
        return "", flags
    found, models = _flags(config_words(files[0]))
    if models:
        raise ConfigError(
            f"--config {files[0]}: {', '.join(models)} belongs to no flag; expected one value for each. "
            "Write a list only for a flag that takes several."
        )
    own = [flag for flag in flags if flag.name != "config"]
    if has_model or any(flag.name == "model" for flag in own):
        found = [flag for flag in found if flag.name != "model"]
    return files[0], [*found, *own]


def _name(word: str) -> tuple[str, tuple[str, ...], str | None]:
    """Long name, dotted path and value behind `=` of a word that begins with a dash."""
    level = _LEVEL.fullmatch(word)
    if level is not None:
        return "optimization-level", (), level["value"] or None
    written, equals, value = word.partition("=")
    name, *path = written.split(".")
    return long_name(name), tuple(path), value if equals else None
