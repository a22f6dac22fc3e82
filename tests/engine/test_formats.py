"""Every quantised fixture served with the flag: the model that its file means, by readings and transformers.

Twice each. In float32 with experts as A16W16 nothing is rounded on the way, so that a wrong name, row or scale anywhere
in the model shows; and as its use case in bfloat16, within what quantised activations explain.
"""

import random
import re
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from engine.engines import TP2, Engines
from engine.format_files import SHIFTED, experts_moved, is_packed, log_probabilities, nibbles_exchanged
from engine.steps import Rows, teacher
from families.compare import BOUND, LOGIT_STD
from formats.fixtures import BY_FOLDER, FIXTURES
from safetensors import safe_open
from torch import Tensor

from vllm_megamoe.testing.ranks import RankError

pytestmark = pytest.mark.engine

FOLDERS = [fixture.folder for fixture in FIXTURES if fixture.format != "bf16" and not fixture.refused]
IN_EVERY_RUN = {"qwen3_moe__msmodelslim__w4a8_dynamic"}
OWN_INT8 = [
    "mixtral__llmcompressor-mf__W8A8",
    "qwen3_moe__llmcompressor__W4A8_channel",
    "qwen3_moe__llmcompressor__W8A8",
    "qwen3_moe__llmcompressor__mixed_attnW8A8_expW4A8",
    "qwen3_moe_ns__llmcompressor__W8A8",
]
"""vLLM's CPU build runs their linears itself and quantises what goes in, so they are not exact in float32."""

VOCABULARY = 512
_RNG = random.Random(3)
PROMPTS = [[_RNG.randrange(4, 250) for _ in range(40)] for _ in range(8)]
ASK = partial(teacher, sequences=PROMPTS, starts=[1] * len(PROMPTS), best=VOCABULARY)

# vLLM's rotary kernel for CPUs misreads the strided rows of latent attention; its own PyTorch form does not.
SAME_FOR_ALL: dict[str, Any] = {
    "quantization": "megamoe",
    "enforce_eager": True,
    "enable_prefix_caching": False,
    "max_model_len": 64,
    "max_num_batched_tokens": 64,
    "max_logprobs": VOCABULARY,
    "compilation_config": {"custom_ops": ["all", "-rotary_embedding"]},
}

ERROR = {
    "a16w16": 0.0052,
    "a8w8-int": 0.031,
    "a8w4-int": 0.031,
    "a8w8-fp": 0.087,
    "a8w4-fp": 0.087,
    "a4w4-fp": 0.28,
}
"""Error of a layer's output over its size at the most, profiles.losses.OUTPUT (tests/profiles/test_losses.py measures
it): of A8W8-INT from BF16, whose weights are rounded on top; of A8W8-FP likewise. INT4 and FP4 experts that are not
rounded have the activations of those two."""


@dataclass
class Served:
    """Runs each engine once, and each reference."""

    engines: Engines
    shared: Path
    folder: Path
    references: dict[str, list[Tensor]] = field(default_factory=dict)

    def fixture(self, name: str) -> Path:
        return self.shared / "fixtures" / f"{name}__s0"

    def expected(self, name: str) -> list[Tensor]:
        if name not in self.references:
            self.references[name] = log_probabilities(self.fixture(name), self.folder / name / "plain", PROMPTS)
        return self.references[name]

    def float32(self, model: Path, **arguments: Any) -> list[Tensor]:
        options = {"use_case": "a16w16", "requant": "allow"}
        return self._run(model, {"dtype": "float32", "additional_config": {"megamoe": options}, **arguments})

    def as_use_case(self, name: str, model: Path) -> list[Tensor]:
        options = {} if BY_FOLDER[name].facts.answer == "exact" else {"requant": "allow"}
        return self._run(model, {"dtype": "bfloat16", "additional_config": {"megamoe": options}})

    def _run(self, model: Path, arguments: dict[str, Any]) -> list[Tensor]:
        ranks = self.engines.run({"model": str(model), **SAME_FOR_ALL, **arguments}, [ASK])
        return [_dense(rows) for rows in ranks[-1][0]]

    def damaged(self, name: str, kind: str) -> Path:
        target = self.folder / name / kind
        return target if target.exists() else DAMAGES[kind](self.fixture(name), target)


DAMAGES = {"experts moved": experts_moved, "nibbles exchanged": nibbles_exchanged}


def _dense(rows: Rows) -> Tensor:
    found = torch.full((len(rows), VOCABULARY), float("nan"), dtype=torch.float64)
    for position, row in enumerate(rows):
        found[position, list(row)] = torch.tensor(list(row.values()), dtype=torch.float64)
    return found


@pytest.fixture(scope="module")
def served(engines: Engines, shared_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Served:
    return Served(engines, shared_dir, tmp_path_factory.mktemp("formats"))


def _param(folder: str, *more: str) -> object:
    marks = [] if folder in IN_EVERY_RUN else [pytest.mark.full]
    return pytest.param(folder, *more, marks=marks, id="-".join((folder, *more)))


@pytest.mark.parametrize("folder", [_param(folder) for folder in FOLDERS if folder not in OWN_INT8])
def test_every_number_of_the_checkpoint_is_served(folder: str, served: Served) -> None:
    """All log-probabilities, within what the order of float32 sums explains."""
    expected = served.expected(folder)
    limit = BOUND * max(1.0, spread(expected) / LOGIT_STD)
    worst, position = furthest(expected, served.float32(served.fixture(folder)))
    assert worst <= limit, f"prompt and token {position}: {worst:.2e} (limit {limit:.1e})"


TWO_RANKS = [
    "deepseek_v3__msmodelslim__w8a8_dynamic",  # shared experts within the call, latent attention
    "qwen2_moe__msmodelslim__w8a8_dynamic",  # shared experts cut over the ranks
    "qwen3_moe__llmcompressor__NVFP4",
    SHIFTED,  # one rank of two adds the bias of a linear whose outputs are summed
]


@pytest.mark.full
@pytest.mark.parametrize("folder", TWO_RANKS)
def test_two_ranks_serve_the_same_numbers(folder: str, served: Served) -> None:
    """Linears cut by vLLM after they were read, experts dealt out; the last rank's answer."""
    expected = served.expected(folder)
    limit = BOUND * max(1.0, spread(expected) / LOGIT_STD)
    worst, position = furthest(expected, served.float32(served.fixture(folder), **TP2))
    assert worst <= limit, f"prompt and token {position}: {worst:.2e} (limit {limit:.1e})"


@pytest.mark.parametrize("folder", [_param(folder) for folder in FOLDERS])
def test_served_as_its_use_case_it_is_near(folder: str, served: Served) -> None:
    expected = served.expected(folder)
    found = apart(expected, served.as_use_case(folder, served.fixture(folder)))
    assert found <= bound(folder, expected), f"{found:.4f} (limit {bound(folder, expected):.4f})"


def _controls() -> list[object]:
    return [_param(folder, kind) for folder in FOLDERS for kind in DAMAGES if kind == "experts moved" or packs(folder)]


def packs(folder: str) -> bool:
    """Whether the format has two codes in a byte, and no second scale that rejects other ones."""
    form = BY_FOLDER[folder].format
    return bool(re.search(r"mxfp4|nvfp4|-w4a8-mxfp|msmodelslim-w4|a16|gptq", form)) and form != TWO_STAGES


TWO_STAGES = "msmodelslim-w4a8-dynamic-group"


@pytest.mark.parametrize(("folder", "kind"), _controls())
def test_damage_is_seen(folder: str, kind: str, served: Served) -> None:
    """Negative control of the comparison before."""
    expected = served.expected(folder)
    model = served.damaged(folder, kind)
    if kind == "nibbles exchanged":
        with safe_open(next(model.glob("*.safetensors")), "pt") as file:
            assert any(is_packed(name, file.get_tensor(name)) for name in file.keys())  # noqa: SIM118
    found, limit = apart(expected, served.as_use_case(folder, model)), bound(folder, expected)
    assert found > limit, f"{found:.4f} (limit {limit:.4f})"


@pytest.mark.full
def test_experts_with_a_bias_are_refused_by_name(served: Served) -> None:
    with pytest.raises(RankError, match=r"bias"):
        served.as_use_case(
            "gpt_oss__openai-layout__mxfp4_blocks", served.fixture("gpt_oss__openai-layout__mxfp4_blocks")
        )


def spread(expected: list[Tensor]) -> float:
    """Standard deviation of the logits of a token."""
    return float(torch.cat(expected).std(dim=1).mean())


def furthest(expected: list[Tensor], found: list[Tensor]) -> tuple[float, tuple[int, int]]:
    """The largest difference, and where."""
    worst = [(mine - theirs).abs().amax(dim=1) for mine, theirs in zip(expected, found, strict=True)]
    prompt = max(range(len(worst)), key=lambda i: float(worst[i].max()))
    return float(worst[prompt].max()), (prompt, int(worst[prompt].argmax()))


def apart(expected: list[Tensor], found: list[Tensor]) -> float:
    """How far the five best log-probabilities of a token are apart, root-mean-square; the median over tokens.

    The median, because a router that is near a tie may choose another expert for a few tokens, rightly.
    """
    mine, theirs = torch.cat(expected), torch.cat(found)
    best = mine.topk(5, dim=1).indices
    return float((mine - theirs).gather(1, best).square().mean(dim=1).sqrt().median())


def bound(folder: str, expected: list[Tensor]) -> float:
    """What quantised activations explain.

    A layer's output is off by ERROR of its size at the most. The next layer's SwiGLU is a product of two that move with
    its input, one of them up to twice as fast near 0 (silu), so an error e in front leaves it as sqrt(1 + 1.5^2) * e =
    1.8 e, independent of its own: after two layers sqrt(1 + 1.8^2) = 2.1 e, and a sum with what attention adds is off
    by no larger a part. A logit moves by that part of the spread of the logits, a log-probability by sqrt(2) of it.
    Linears that vLLM runs in INT8 add the error of INT8 activations.
    """
    fixture = BY_FOLDER[folder]
    part = ERROR[fixture.auto or "a16w16"] + (ERROR["a8w8-int"] if folder in OWN_INT8 else 0.0)
    layers = len(fixture.layers) - len(fixture.draft)
    return 2**0.5 * part * (2.1 if layers > 1 else 1.0) * spread(expected)


def test_the_biases_of_norms_are_in_the_reference() -> None:
    """The one fixture whose tool moves numbers from norms into biases is among those that are compared exactly."""
    assert SHIFTED in FOLDERS
    assert SHIFTED not in OWN_INT8


@pytest.mark.full
@pytest.mark.parametrize("folder", ["qwen3_moe__msmodelslim__w4a8_dynamic", "qwen3_moe__llmcompressor__MXFP4"])
def test_dummy_weights_of_a_quantised_checkpoint_give_numbers(served: Served, folder: str) -> None:
    """`--load-format dummy`, with which sizes and speed are tried without a checkpoint's files."""
    arguments = {"dtype": "bfloat16", "load_format": "dummy", "additional_config": {"megamoe": {"requant": "allow"}}}
    for found in served._run(served.fixture(folder), arguments):
        assert bool(found.isfinite().all())
