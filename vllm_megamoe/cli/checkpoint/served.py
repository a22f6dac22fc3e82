"""`check --logprobs`: a checkpoint served as its use case, beside the same numbers without a rounding.

Both are engines of this machine's vLLM, one after the other in one process. The second has every weight dequantised and
computes in float32, experts as A16W16: what the checkpoint means. Compared is how likely each finds a prompt's tokens.
"""

import math
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from vllm_megamoe.cli.checkpoint.schema import LogprobsReport, PromptReport
from vllm_megamoe.errors import ConfigError
from vllm_megamoe.plan.options import KEY
from vllm_megamoe.testing.engines import EngineRanks, TokenRows, of_prompts
from vllm_megamoe.testing.ranks import RankError

_MOST_TOLD = 60
"""Characters of a prompt that a report repeats."""

_MOST_SAID = 2000
"""Characters of what an engine says before it ends."""


def read_prompts(file: Path) -> list[str]:
    """One prompt a line.

    Raises:
        ConfigError: the file cannot be read, or has none.
    """
    try:
        found = [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"--logprobs {file}: cannot be read ({error}); expected a text with a prompt a line."
        ) from error
    if not found:
        raise ConfigError(f"--logprobs {file}: no prompt; expected one a line.")
    return found


def compare(checkpoint: str, prompts: list[str], options: dict[str, Any]) -> LogprobsReport:
    """Serve both and compare.

    Args:
        checkpoint: a folder with weights and a tokenizer.
        prompts: of at least two tokens each.
        options: of this package, as in --additional-config.

    Raises:
        ConfigError: an engine refuses the checkpoint or fails, in its own words; or a prompt is too short.
    """
    step = partial(of_prompts, prompts=prompts)
    # Latent attention needs vLLM's own PyTorch form of the rotary embedding on a CPU.
    same = {
        "model": str(Path(checkpoint).resolve()),
        "skip_tokenizer_init": False,
        "quantization": "megamoe",
        "enforce_eager": True,
        "enable_prefix_caching": False,
        "max_model_len": max(len(prompt.encode()) for prompt in prompts) + 16,  # a token is a byte at least
        "compilation_config": {"custom_ops": ["all", "-rotary_embedding"]},
    }
    exact = {"use_case": "a16w16", "requant": "allow", "profile": "none"}
    with tempfile.TemporaryDirectory() as folder:
        ranks = EngineRanks(1, Path(folder))
        try:
            llm = {**same, "dtype": "bfloat16", "additional_config": {KEY: options}}
            served: tuple[list[TokenRows], str] = ranks.serve(llm, [step])[0][0]
            llm = {**same, "dtype": "float32", "additional_config": {KEY: exact}}
            meant: tuple[list[TokenRows], str] = ranks.serve(llm, [step])[0][0]
        except RankError as error:
            text = str(error)
            said = text[max(text.rfind("Error: "), 0) :].strip().removeprefix("Error: ")
            raise ConfigError(f"--logprobs: {checkpoint} is not served. {said[:_MOST_SAID]}") from error
        finally:
            ranks.stop()
    pairs = zip(prompts, served[0], meant[0], strict=True)
    found = tuple(_compared(number, *pair) for number, pair in enumerate(pairs))
    worst = max(found, key=lambda one: one.rms)
    return LogprobsReport(model=checkpoint, use_case=served[1], prompts=found, worst=worst.number)


def _compared(number: int, prompt: str, served: TokenRows, meant: TokenRows) -> PromptReport:
    if not meant:
        raise ConfigError(f"--logprobs: prompt {number} ({prompt[:_MOST_TOLD]!r}) has one token; expected two or more.")
    off = [a - b for (a, _), (b, _) in zip(served, meant, strict=True)]
    worst = max(range(len(off)), key=lambda place: abs(off[place]))
    return PromptReport(
        number=number,
        prompt=prompt[:_MOST_TOLD],
        tokens=len(off),
        rms=math.sqrt(math.fsum(one * one for one in off) / len(off)),
        worst_token=worst + 1,
        worst_difference=off[worst],
        perplexity_served=math.exp(-math.fsum(a for a, _ in served) / len(off)),
        perplexity_meant=math.exp(-math.fsum(b for b, _ in meant) / len(off)),
        other_best=sum(a != b for (_, a), (_, b) in zip(served, meant, strict=True)),
    )
