"""Logical inputs: `grid` data, on which nothing is uncertain, and `random` data, bounded by intervals.

Grid data drives each gate with a few large columns of x, so that sigmoid and tanh are saturated and fp32 knows them
exactly; sums stay on a grid that fp32 holds. Shapes are never square; scales differ by expert, channel and group.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from oracle import formats
from oracle.case import Case, Dense, Experts, Integer, Mx, Rank
from oracle.interval import F32

Rng = np.random.Generator
MX_ELEMENTS = {"a8w8-fp": ("e4m3", "e4m3"), "a8w4-fp": ("e4m3", "e2m1"), "a4w4-fp": ("e2m1", "e2m1")}


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a case; intermediate is after the activation."""

    tokens: tuple[int, ...] = (5,)
    experts: int = 4
    hidden: int = 96
    intermediate: int = 64
    topk: int = 3


def _signs(rng: Rng, shape: tuple[int, ...]) -> F32:
    """+1 three times out of four, then 0 and -1: open, shut and idle gates."""
    return rng.choice(np.float32([1, 1, 1, 1, 1, 1, 0, -1]), shape)


def _dense(rng: Rng, s: Shape, experts: int, grid: bool) -> Dense:
    gate_up = (experts, 2 * s.intermediate, s.hidden)
    down = (experts, s.hidden, s.intermediate)
    if not grid:
        w13 = rng.standard_normal(gate_up) / np.sqrt(s.hidden) * rng.uniform(0.5, 2, (*gate_up[:2], 1))
        w2 = rng.standard_normal(down) / np.sqrt(s.intermediate) * rng.uniform(0.5, 2, (*down[:2], 1))
        return Dense(formats.to_bf16(np.float32(w13)), formats.to_bf16(np.float32(w2)))
    w13 = np.float32(rng.integers(-2, 3, gate_up) / 2)
    signs = _signs(rng, (experts, s.intermediate))
    w13[:, : s.intermediate] *= np.abs(signs)[..., None]
    w13[:, : s.intermediate, -1] = 512 * signs
    w13[:, s.intermediate :, -1] = 64 if s.hidden < 1024 else 512  # above the noise of the other columns
    return Dense(w13, np.float32(rng.integers(-4, 5, down) / 4))


def _integer(rng: Rng, s: Shape, experts: int, bits: int, grid: bool) -> Integer:
    low, high = (-127, 128) if bits == 8 else (-8, 8)
    gate_up = (experts, 2 * s.intermediate, s.hidden)
    w13 = rng.integers(low, high, gate_up).astype(np.int8)
    w2 = rng.integers(low, high, (experts, s.hidden, s.intermediate)).astype(np.int8)
    if grid:
        gate = w13[:, : s.intermediate]
        gate[...] = rng.integers(-1, 2, gate.shape) * (rng.random(gate.shape) < 0.25)
        signs = _signs(rng, gate.shape[:2])
        gate *= np.abs(signs)[..., None].astype(np.int8)
        strong = rng.integers(*((100, 128) if bits == 8 else (6, 8)), (*gate.shape[:2], 8))
        gate[..., -8:] = strong * signs[..., None]
    step = 2.0 ** ((-13 if grid else -17) if bits == 8 else (-9 if grid else -13))
    s13 = np.float32(rng.permutation(gate_up[0] * gate_up[1]).reshape(gate_up[:2]) % 128 + 129) * np.float32(step)
    if grid and bits == 4:
        s13[:, : s.intermediate] *= np.float32(2)
    s2 = np.float32(rng.permutation(experts * s.hidden).reshape(experts, -1) % 128 + 129) * np.float32(step)
    return Integer(w13, s13, w2, s2, bits)


def _mx(rng: Rng, s: Shape, experts: int, elem: str, grid: bool) -> Mx:
    gate_up = (experts, 2 * s.intermediate, s.hidden)
    down = (experts, s.hidden, s.intermediate)
    s13 = rng.integers(124, 128, (*gate_up[:2], -(-s.hidden // 32))).astype(np.uint8)
    s2 = rng.integers(124, 128, (*down[:2], -(-s.intermediate // 32))).astype(np.uint8)
    if not grid:
        w13, w2 = (formats.to_element(np.float32(rng.standard_normal(d) * 2), elem) for d in (gate_up, down))
        return Mx(formats.encode(w13, elem), s13 - 1, formats.encode(w2, elem), s2 - 1, elem)
    values = np.float32([0, 0.5, 1, 1.5, 2, 3, -0.5, -1, -1.5, -2, -3])
    w13, w2 = rng.choice(values, gate_up), rng.choice(values, down)
    signs = _signs(rng, (experts, s.intermediate))
    start = (s.hidden - 1) // 32 * 32
    w13[:, : s.intermediate, start:] = 0
    w13[:, : s.intermediate] *= np.abs(signs)[..., None]
    w13[:, : s.intermediate, -1] = 6 * signs
    w13[:, s.intermediate :, start:] = 0
    w13[:, s.intermediate :, -1] = 6
    s13[:, : s.intermediate, -1] = rng.integers(134, 136, s13[:, : s.intermediate, -1].shape)
    s13[:, s.intermediate :, -1] = 132
    return Mx(formats.encode(w13, elem), s13, formats.encode(w2, elem), s2, elem)


def make_experts(rng: Rng, use_case: str, s: Shape, experts: int, *, grid: bool, elem: str | None = None) -> Experts:
    """Experts of a use case; `elem` overrides the weights' element type of an MX use case."""
    if use_case == "a16w16":
        return _dense(rng, s, experts, grid)
    if use_case in ("a8w8-int", "a8w4-int"):
        return _integer(rng, s, experts, 8 if use_case == "a8w8-int" else 4, grid)
    return _mx(rng, s, experts, elem or MX_ELEMENTS[use_case][1], grid)


def make_x(rng: Rng, use_case: str, tokens: int, hidden: int, grid: bool) -> F32:
    """bf16 rows whose last columns drive the gates of grid data."""
    if not grid:
        return formats.to_bf16(np.float32(rng.standard_normal((tokens, hidden)) * rng.uniform(0.5, 3, (tokens, 1))))
    if use_case == "a16w16":
        x = np.float32(rng.integers(-3, 4, (tokens, hidden)))
        x[:, -1] = rng.integers(1, 3, tokens)
    elif use_case.endswith("-int"):
        x = formats.to_bf16(np.float32(rng.standard_normal((tokens, hidden))))
        x[:, -8:] = formats.to_bf16(np.float32(rng.uniform(3.6, 4, (tokens, 8))))
        x[:, :-8] = np.clip(x[:, :-8], -3.5, 3.5)
    else:
        x = np.float32(rng.uniform(0.25, 1.99, (tokens, hidden)) * rng.choice([-1, 1], (tokens, hidden)))
        x[:, -1] = rng.uniform(1, 1.99, tokens)
        x = formats.to_bf16(x)
    return x


def make_ids(rng: Rng, tokens: int, experts: int, topk: int) -> NDArray[np.int32]:
    """Distinct experts per token."""
    return np.stack([rng.permutation(experts)[:topk] for _ in range(tokens)]).astype(np.int32)


def make_case(
    use_case: str, s: Shape, *, seed: int = 0, grid: bool = True, act_elem: str | None = None, shared: int = 0
) -> Case:
    """A whole call; shared experts differ from rank to rank."""
    rng = np.random.default_rng(seed)
    elem = act_elem or (MX_ELEMENTS[use_case][0] if use_case in MX_ELEMENTS else None)
    weight = elem if use_case == "a8w8-fp" else None
    experts = make_experts(rng, use_case, s, s.experts, grid=grid, elem=weight)
    ranks = tuple(
        Rank(
            make_x(rng, use_case, tokens, s.hidden, grid),
            make_ids(rng, tokens, s.experts, s.topk),
            np.float32(rng.uniform(0.05, 1, (tokens, s.topk))),
            shared=make_experts(rng, use_case, s, shared, grid=grid, elem=weight) if shared else None,
        )
        for tokens in s.tokens
    )
    return Case(use_case, experts, ranks, act_elem=elem)


def with_ranks(case: Case, **changes: object) -> Case:
    """Every rank with the same fields replaced."""
    return replace(case, ranks=tuple(replace(rank, **changes) for rank in case.ranks))  # type: ignore[arg-type]
