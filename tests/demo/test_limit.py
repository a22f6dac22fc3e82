"""The demo's limit: above what bf16 gives, below what a wrong MoE gives; and how a comparison counts.

transformers runs the demo's checkpoint here, once as it is in float32, once with an MoE that is wrong on purpose, over
the demo's own prompts, candidates and arithmetic.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from vllm_megamoe.demo.checkpoint import make_checkpoint
from vllm_megamoe.demo.comparison import NEW_TOKENS, PROMPTS, TOP, Difference, Recorded, compare, record
from vllm_megamoe.demo.story import LIMIT


@dataclass
class Model:
    """Answers as the demo's client does, from a model of transformers; only the baseline has to go on by itself."""

    model: PreTrainedModel
    goes_on: bool = False

    def greedy_tokens(self, prompt: list[int], max_tokens: int) -> list[int]:
        tokens = list(prompt)
        for _ in range(max_tokens):
            tokens.append(int(self._logits(tokens)[-1].argmax()) if self.goes_on else 0)
        return tokens[len(prompt) :]

    def log_probabilities(self, tokens: list[int], top: int) -> list[dict[int, float]]:
        places = []
        for row, follows in zip(self._logits(tokens)[:-1].log_softmax(-1), tokens[1:], strict=True):
            places.append({int(token): float(row[token]) for token in [*row.topk(top).indices, follows]})
        return places

    def _logits(self, tokens: list[int]) -> torch.Tensor:
        with torch.no_grad():
            logits: torch.Tensor = self.model(torch.tensor([tokens])).logits[0].float()
        return logits


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """The model is small, and threads would wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("limit") / "checkpoint")


def load(checkpoint: Path, dtype: torch.dtype) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(checkpoint, dtype=dtype)


@pytest.fixture(scope="module")
def baseline(checkpoint: Path) -> list[Recorded]:
    return record(Model(load(checkpoint, torch.float32), goes_on=True))  # type: ignore[arg-type]


def difference(model: PreTrainedModel, baseline: list[Recorded]) -> float:
    return compare(Model(model), baseline).largest  # type: ignore[arg-type]


def test_bf16_is_within_the_limit(checkpoint: Path, baseline: list[Recorded]) -> None:
    assert 0 < difference(load(checkpoint, torch.bfloat16), baseline) < LIMIT


def scaled(model: PreTrainedModel) -> None:
    """Rows of the MoE times 0.9."""
    for layer in model.model.layers:
        layer.mlp.register_forward_hook(lambda module, given, out: 0.9 * out)


def swapped(model: PreTrainedModel) -> None:
    """The router's first two experts change places, the experts do not."""
    for layer in model.model.layers:
        rows = layer.mlp.gate.weight.data
        rows[[0, 1]] = rows[[1, 0]].clone()


@pytest.mark.parametrize("damage", [scaled, swapped])
def test_a_wrong_moe_is_beyond_the_limit(
    damage: Callable[[PreTrainedModel], None], checkpoint: Path, baseline: list[Recorded]
) -> None:
    model = load(checkpoint, torch.float32)
    damage(model)
    assert difference(model, baseline) > LIMIT


class Fixed:
    """A client that always finds the same tokens and log-probabilities."""

    def __init__(self, place: dict[int, float]) -> None:
        self.place = place

    def greedy_tokens(self, prompt: list[int], max_tokens: int) -> list[int]:
        return [1] * max_tokens

    def log_probabilities(self, tokens: list[int], top: int) -> list[dict[int, float]]:
        return [self.place] * (len(tokens) - 1)


def found(expected: dict[int, float], ours: dict[int, float]) -> Difference:
    client: Any = Fixed(ours)
    return compare(client, [Recorded([0] + [1] * NEW_TOKENS, 1, [expected] * NEW_TOKENS)])


@pytest.mark.parametrize(
    ("ours", "largest"),
    [
        ({1: -1.0, 2: -2.0}, 0.0),
        ({1: -1.0, 2: -2.5}, 0.5),
        # token 2 is not among ours: it counts as the least likely of them, never as the likeliest
        ({1: -1.0, 3: -6.0, 4: -4.0}, 4.0),
    ],
)
def test_the_largest_difference(ours: dict[int, float], largest: float) -> None:
    assert found({1: -1.0, 2: -2.0}, ours).largest == largest


def test_what_a_recording_holds(baseline: list[Recorded]) -> None:
    assert [len(one.new_tokens) for one in baseline] == [NEW_TOKENS] * len(PROMPTS)
    assert all(len(one.top) == len(one.tokens) - 1 for one in baseline)
    assert {len(place) for one in baseline for place in one.top} <= {TOP, TOP + 1}
