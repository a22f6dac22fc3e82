"""`check --logprobs`: what it says of the meant model is what transformers computes from the file's own numbers."""

import json
import math
from pathlib import Path

import pytest
from cli.command import run
from engine.format_files import log_probabilities

from vllm_megamoe.cli.checkpoint.schema import LogprobsReport

FOLDER = "qwen3_moe__msmodelslim__w4a8_dynamic__s0"
TEXTS = ["Hello there, how are you?", "The quick brown fox jumps"]


@pytest.mark.full
@pytest.mark.engine
def test_the_meant_model_and_the_worst_prompt(shared_dir: Path, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    source, prompts = shared_dir / "fixtures" / FOLDER, tmp_path / "prompts.txt"
    prompts.write_text("\n".join(TEXTS))
    found = run("check", str(source), "--logprobs", str(prompts), "--json")
    assert found.exit_code == 0, found.output
    report = LogprobsReport.model_validate(json.loads(found.stdout[found.stdout.index("{") :]))
    tokens = [AutoTokenizer.from_pretrained(source)(text)["input_ids"] for text in TEXTS]
    expected = log_probabilities(source, tmp_path / "plain", tokens)
    for one, ids, rows in zip(report.prompts, tokens, expected, strict=True):
        mean = float(rows.gather(1, rows.new_tensor(ids[1:]).long()[:, None]).mean())
        assert one.tokens == len(ids) - 1
        assert math.log(one.perplexity_meant) == pytest.approx(-mean, abs=1e-3)
        assert 1e-4 < one.rms < 0.5
    assert report.use_case == "a8w4-int"
    assert report.prompts[report.worst].rms == max(one.rms for one in report.prompts)


def test_wrong_usage(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("\n\n")
    for arguments, said in (
        (["--logprobs", str(tmp_path / "absent.txt")], "cannot be read"),
        (["--logprobs", str(tmp_path / "empty.txt")], "no prompt"),
        (["--logprobs", str(tmp_path / "empty.txt"), "--layers", "1"], "serves the whole model"),
    ):
        found = run("check", str(tmp_path), *arguments)
        assert found.exit_code == 2
        assert said in " ".join(found.output.split())
