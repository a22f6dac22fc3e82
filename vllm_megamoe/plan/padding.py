"""Sizes that a product does not take are padded with zeros where that is exact, at a stated price.

Zero gate and up rows give an activation of 0 (every activation of the operator has A(0, 0) = 0), zero input columns add
nothing to a sum, and no amax over a row or group rises by a zero; so padding changes no result. An expert that is too
wide for a product would have to be split instead, which is not done: the refusal says into what.
"""

import math
from dataclasses import dataclass

from vllm_megamoe.plan.facts import MoeFacts
from vllm_megamoe.plan.options import Options
from vllm_megamoe.plan.verdict import Rejected, Violation
from vllm_megamoe.profiles.limits import Limits, limits_of
from vllm_megamoe.profiles.profile import Profile
from vllm_megamoe.profiles.sizes.common import round_up
from vllm_megamoe.profiles.use_cases import USE_CASES, UseCase


@dataclass(frozen=True, slots=True)
class Padding:
    """Sizes as the operator gets them.

    Attributes:
        hidden, intermediate_hidden: padded sizes; the model's own where nothing is padded.
        hidden_was, intermediate_was: the model's.
    """

    hidden: int
    intermediate_hidden: int
    hidden_was: int
    intermediate_was: int

    @property
    def overhead(self) -> float:
        """Added weights and FLOPs as a fraction of the unpadded ones."""
        return self.hidden * self.intermediate_hidden / (self.hidden_was * self.intermediate_was) - 1

    def __bool__(self) -> bool:
        return (self.hidden, self.intermediate_hidden) != (self.hidden_was, self.intermediate_was)

    def __str__(self) -> str:
        parts = [
            f"{name} {was} -> {now}"
            for name, was, now in (
                ("hidden", self.hidden_was, self.hidden),
                ("intermediate_hidden", self.intermediate_was, self.intermediate_hidden),
            )
            if was != now
        ]
        return f"{', '.join(parts)} (+{self.overhead:.0%} weights and FLOPs)" if parts else "none"


def plan_padding(
    layer: MoeFacts, use_case: UseCase, profile: Profile, options: Options
) -> tuple[Padding, list[Violation]] | Rejected[None]:
    """Sizes as the operator gets them, with what the user must consent to; refused where no padding makes them legal.

    Profile `none` pads only what 4-bit elements need, which are stored in pairs.
    """
    hidden, width = layer.hidden, layer.intermediate_hidden
    limits = limits_of(profile)
    pair = 2 if USE_CASES[use_case].weight_bits == 4 else 1
    padded_hidden = limits.hidden.value.at_least(round_up(hidden, pair))
    padded_width = limits.intermediate.value.at_least(round_up(width, pair))
    if padded_hidden is None:
        too_wide = [] if padded_width is not None else [_too_wide(layer, limits)]
        expected = f"{limits.hidden.value} ({limits.hidden.source})"
        remedy = "Serve this model without --quantization megamoe."
        return Rejected(Violation(layer.name, f"hidden = {hidden}", expected, remedy), *too_wide, draft=None)
    if padded_width is None:
        return Rejected(_too_wide(layer, limits), draft=None)
    padding, found = Padding(padded_hidden, padded_width, hidden, width), []
    if padding.overhead > options.max_padding_overhead:
        enough = math.ceil(padding.overhead * 100) / 100
        remedy = f"Set max_padding_overhead to {enough:.2f} to pay for it."
        expected = f"at most {options.max_padding_overhead:.0%} (max_padding_overhead)"
        found.append(Violation(layer.name, f"needs zero-padding: {padding}", expected, remedy))
    return padding, found


def _too_wide(layer: MoeFacts, limits: Limits) -> Violation:
    split = split_needed(layer.intermediate_hidden, layer.topk, limits)
    remedy = "Serve this model without --quantization megamoe"
    if split is not None:
        parts, width = split
        remedy += (
            f": each expert would have to be split into {parts} of {width}, which makes {layer.num_experts * parts} "
            f"experts and topk {layer.topk * parts}, and that conversion does not exist"
        )
    expected = f"{limits.intermediate.value} ({limits.intermediate.source})"
    return Violation(layer.name, f"intermediate_hidden = {layer.intermediate_hidden}", expected, remedy + ".")


def split_needed(intermediate: int, topk: int, limits: Limits) -> tuple[int, int] | None:
    """(parts, width) of the split that an expert too wide would need: the least padding, then the fewest parts.

    Every part is an expert of its own, so topk grows with the parts and may not exceed the product's limit.
    """
    found = []
    for parts in range(2, (limits.topk.value.most or topk) // topk + 1):
        width = limits.intermediate.value.at_least(-(-intermediate // parts))
        if width is not None:
            found.append((parts * width, parts, width))
    if not found:
        return None
    _, parts, width = min(found)
    return parts, width
