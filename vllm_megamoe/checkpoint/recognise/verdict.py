"""One word for a layer's experts, from the format of each of their projections."""

from collections.abc import Mapping

from vllm_megamoe.checkpoint.recognise.facts import BF16


def verdict(found: Mapping[str, str]) -> str:
    """The one format of all, or a sentence that names the difference; `bf16` for none at all.

    Args:
        found: the format by projection.
    """
    kinds = sorted(set(found.values()) - {BF16})
    if not kinds:
        return BF16
    if BF16 in found.values():
        first = next(name for name, kind in found.items() if kind != BF16)
        return f"{'/'.join(kinds)} for some of the experts ({first} is quantised, others are not)"
    return kinds[0] if len(kinds) == 1 else f"{' and '.join(kinds)}, each for a part of the experts"
