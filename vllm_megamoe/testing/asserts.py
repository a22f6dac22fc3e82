"""What a model or quantisation team asserts: two engines say the same, and a layer computes what its numbers mean.

The bound of two float32 engines. Two correct paths differ in the order of their float32 sums only. A rounding moves a
value by at most u = 2^-24 of itself, u / sqrt(3) root-mean-square. In a sum of K products with independent random
weights the partial sums grow as sqrt(i), so its K roundings move the result by u * sqrt(K / 6) of its size. R such
sums, each in both paths, move the last hidden state by u * sqrt(2 * R * K / 6) of its size, and a logit by that part of
the spread of the logits; a log-probability is a logit less a log-sum that moves no more than the logits do, hence
sqrt(2). Six standard deviations leave two in a billion.

Importing this brings neither torch nor vLLM.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import os

    from torch import Tensor

SUMS_PER_LAYER = 5 + 2 + 1 + 2 + 2
"""Projections and products of attention, router, both GEMMs of the routed and of the shared experts."""

ACTIVATIONS: Mapping[str, float] = {
    "a16w16": 0.0052,
    "a8w8-int": 0.031,
    "a8w4-int": 0.031,
    "a8w8-fp": 0.087,
    "a8w4-fp": 0.087,
    "a4w4-fp": 0.28,
}
"""Use case -> most that rounded rows and activations move a layer's output by, over its rms.

profiles.losses.OUTPUT, measured in tests/profiles/test_losses.py: INT4 and FP4 weights that are not rounded have the
activations of A8W8-INT and A8W8-FP.
"""


def float32_bound(*, hidden: int, layers: int, spread: float) -> float:
    """How far apart two float32 log-probabilities of one model may be.

    Args:
        hidden: the longest sum, as a rule hidden_size.
        layers: decoder layers.
        spread: standard deviation of the logits of a token.
    """
    sums = layers * SUMS_PER_LAYER + 1
    return 6 * math.sqrt(2) * 2.0**-24 * math.sqrt(2 * sums * hidden / 6) * spread


def assert_same_logprobs(
    expected: "Sequence[Tensor]",
    found: "Sequence[Tensor]",
    *,
    use_case: str | None = None,
    hidden: int = 1024,
    layers: int = 3,
    limit: float | None = None,
) -> None:
    """Two engines found the same log-probabilities; the worst prompt and token are named where they did not.

    Without `use_case` both computed in float32, and every value is compared, with the bound of this module. With it,
    the found ones come from experts as that use case: then the five likeliest tokens of each place are compared,
    root-mean-square, and the median over places counts, because a router that is near a tie may choose another expert
    for a few tokens, rightly. Its limit: a layer's output is off by ACTIVATIONS of its size at the most, a second layer
    adds to that what its SwiGLU makes of it (1.8 times, in all 2.1), and further ones likewise.

    Args:
        expected: [tokens, vocabulary] for each prompt.
        found: the same.
        use_case: of the experts behind `found`, None for float32.
        hidden, layers: of the model, for the bound.
        limit: in the bound's place.

    Raises:
        AssertionError: they differ; with prompt, token, difference and limit.
    """
    import torch

    assert len(expected) == len(found), f"{len(found)} prompts, expected {len(expected)}"
    assert expected, "no prompts; expected at least one"
    for number, (mine, theirs) in enumerate(zip(expected, found, strict=True)):
        assert mine.shape == theirs.shape, f"prompt {number}: {list(theirs.shape)}, expected {list(mine.shape)}"
        missing = ~torch.isfinite(theirs)
        if bool(missing.any()):
            row = int(missing.any(dim=1).nonzero()[0])
            raise AssertionError(f"prompt {number}, token {row}: not finite; expected a log-probability of every token")
    spread = float(torch.cat(list(expected)).float().std(dim=1).mean())
    if use_case is None:
        bound = float32_bound(hidden=hidden, layers=layers, spread=max(spread, 1.0)) if limit is None else limit
        each = [(mine - theirs).abs().amax(dim=1) for mine, theirs in zip(expected, found, strict=True)]
        measured = max(float(rows.max()) for rows in each)
        what = "largest difference of a log-probability"
    else:
        part = ACTIVATIONS[use_case] * math.sqrt(sum(1.8 ** (2 * layer) for layer in range(layers)))
        bound = math.sqrt(2) * part * spread if limit is None else limit
        each = [_five_best(mine, theirs) for mine, theirs in zip(expected, found, strict=True)]
        measured = float(torch.cat(each).median())
        what = f"median difference of the five likeliest tokens, experts as {use_case}"
    prompt = max(range(len(each)), key=lambda number: float(each[number].max()))
    row = int(each[prompt].argmax())
    assert measured <= bound, (
        f"{what}: {measured:.3g}, expected at most {bound:.3g}; the worst is prompt {prompt}, token {row}: "
        f"{float(each[prompt][row]):.3g}"
    )


def _five_best(mine: "Tensor", theirs: "Tensor") -> "Tensor":
    best = mine.topk(min(5, mine.shape[1]), dim=1).indices
    return (mine - theirs).gather(1, best).square().mean(dim=1).sqrt()


def assert_layer_matches(
    checkpoint: "str | os.PathLike[str]",
    layer: int,
    against: Any = None,
    *,
    use_case: str = "auto",
    profile: str = "none",
    tokens: int = 64,
    weight_limit: float | None = None,
) -> None:
    """A layer of a checkpoint holds the numbers that it should, and its experts compute with them.

    Every routed expert is read, converted as the plan says, and run through the operator's twin on Gaussian rows beside
    the same in float64. Experts that lie in another order, exchanged halves, nibbles or scales show as weights that
    differ; whatever the operator makes of them shows in the output.

    Args:
        checkpoint: folder of the checkpoint, or a TinyCheckpoint.
        layer: number of the decoder layer.
        against: the numbers: (w13 [E, 2I, H] with gate rows first, w2 [E, H, I]), a TinyCheckpoint, or the folder of
            the unquantised original. None: those of `checkpoint`, where that is a TinyCheckpoint.
        use_case: of the operator; `auto` is what the server would take. Naming it is consent to its loss.
        profile: product and revision whose limits hold.
        tokens: rows that each expert gets.
        weight_limit: rms of a matrix's error over its rms. None: 2^-20 beside numbers; beside an original what its
            format explains (`vllm-megamoe check` says how).

    Raises:
        AssertionError: with expert, matrix or token, what it is off by and the limit.
        ConfigError: the checkpoint is malformed, or the product does not take it; with what to do.
    """
    from vllm_megamoe.testing.layer_match import match_layer

    match_layer(checkpoint, layer, against, use_case, profile, tokens, weight_limit)
