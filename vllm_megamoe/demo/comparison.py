"""Compares a model's log-probabilities with a baseline's, on the baseline's own tokens."""

from dataclasses import dataclass

from vllm_megamoe.testing.server import Client

PROMPTS = (
    "Once",
    "The operator sends each token to its experts.",
    "def gate(x): return x * sigmoid(x)",
    "0 1 1 2 3 5 8 13 21 34 55 89 144 233 377 610 987",
)
NEW_TOKENS = 24
TOP = 5
_TOP_ASKED = 20
"""As many as vLLM gives by default: the baseline's top 5 lie well inside the other's top 20."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """One prompt as a model went on with it: all token ids, where the new ones begin, log-probabilities per place."""

    tokens: list[int]
    prompt_length: int
    top: list[dict[int, float]]

    @property
    def new_tokens(self) -> list[int]:
        return self.tokens[self.prompt_length :]


@dataclass(frozen=True, slots=True)
class Difference:
    """What a comparison found."""

    largest: float
    mean: float
    places: int
    equal_tokens: int
    tokens: int


def record(client: Client) -> list[Recorded]:
    """Let a model go on with each prompt, greedily, and record what it found likely at each place."""
    recorded = []
    for text in PROMPTS:
        prompt = list(text.encode())
        tokens = prompt + client.greedy_tokens(prompt, NEW_TOKENS)
        recorded.append(Recorded(tokens, len(prompt), client.log_probabilities(tokens, TOP)))
    return recorded


def compare(client: Client, baseline: list[Recorded]) -> Difference:
    """Ask a model about the baseline's tokens and compare what both found, place by place.

    Both see the same tokens at each place, so a greedy choice that falls the other way on a near-tie does not count
    as a difference in all that follows.
    """
    gaps: list[float] = []
    equal = total = 0
    for one in baseline:
        ours = client.log_probabilities(one.tokens, _TOP_ASKED)
        gaps += [
            abs(_at(place, token) - expected)
            for place, top in zip(ours, one.top, strict=True)
            for token, expected in top.items()
        ]
        again = client.greedy_tokens(one.tokens[: one.prompt_length], NEW_TOKENS)
        equal += sum(a == b for a, b in zip(again, one.new_tokens, strict=True))
        total += len(again)
    return Difference(max(gaps), sum(gaps) / len(gaps), sum(len(one.top) for one in baseline), equal, total)


def _at(place: dict[int, float], token: int) -> float:
    """Return a token's log-probability; for one that is not among those asked for, the lowest of them.

    The true one is lower still, so the difference comes out too small, but it is that of a token which one side finds
    among its five likeliest and the other not among its twenty.
    """
    return place.get(token, min(place.values()))
