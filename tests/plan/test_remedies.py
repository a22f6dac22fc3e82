"""What a remedy offers is taken: every choice that a refusal names is tried, and the refusal is gone."""

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from plan.walk import PROFILES, Question, ask, everything
from profiles.legal import ALL, profile_of

from vllm_megamoe.plan.facts import ActivationFacts
from vllm_megamoe.plan.plan import draft_plan, violations_of
from vllm_megamoe.plan.verdict import Violation
from vllm_megamoe.profiles.facts import BufferFacts
from vllm_megamoe.profiles.limits import legal_ep_sizes, limits_of
from vllm_megamoe.profiles.rules import broken_by_buffer

Change = Callable[[Question, str], Question]


@dataclass(frozen=True)
class Offer:
    """Where a refusal offers something, how to take it, and what must not be said any more.

    `found` has one group with the offers, separated by commas, or no group where there is one offer in words.
    """

    name: str
    found: str
    take: Change
    gone: str


def options(**changes: Any) -> Change:
    return lambda question, _: replace(question, options=question.options.model_copy(update=changes))


def option(name: str, kind: type = str, **others: Any) -> Change:
    return lambda question, value: options(**{name: kind(value)}, **others)(question, value)


def engine(**changes: Any) -> Change:
    return lambda question, _: replace(question, engine=replace(question.engine, **changes))


def ranks(question: Question, value: str) -> Question:
    return engine(tensor_parallel=1, data_parallel=int(value), expert_parallel=int(value) > 1)(question, value)


def activation(question: Question, value: str) -> Question:
    facts = ActivationFacts(value, limit=7.0 if value == "swiglustep" else None)
    return replace(question, layer=replace(question.layer, activation=facts))


NUMBER = r"([\d.]+)"
OFFERS = [
    Offer("ranks", r"from \[([\d, ]+)\]\.", ranks, r"from \[|ep_world_size=|num_experts=|do not divide| on a rank"),
    Offer(
        "use case",
        r"^use_case: .* expected one of ([\w, -]+?)(?: \(|\. )",
        option("use_case", requant="allow"),
        "^use_case",
    ),
    Offer(
        "drop use_case",
        r"^use_case: .*[Dd]rop (?:use_case|it)\.",
        options(use_case="auto", requant="allow"),
        "^use_case",
    ),
    Offer("consent", '"requant": "allow" to the', options(requant="allow"), "is lossy"),
    Offer("dtype", "Add --dtype bfloat16", engine(dtype="bfloat16"), "dtype|float32 with"),
    Offer("activation", r"activation '\w+'; expected one of ([\w, ]+)\.", activation, "activation"),
    Offer("padding", f"max_padding_overhead to {NUMBER} to", option("max_padding_overhead", float), "zero-padding"),
    Offer(
        "budget", rf"workspace_budget_gib to {NUMBER}\.", option("workspace_budget_gib", float), "workspace_budget_gib"
    ),
    Offer("receive 0", r"Set it to 0 or", options(max_recv_token_num=0), "max_recv_token_num"),
    Offer("receive", r"Set it to 0 or (\d+)", option("max_recv_token_num", int), "max_recv_token_num"),
    Offer(
        "drop rows",
        r"accept lost rows with allow_token_drop",
        options(allow_token_drop=True, workspace_budget_gib=2.0),
        "^options: max_recv_token_num",
    ),
    Offer("receive of INT4", r"max_recv_token_num of (0)\)\.", option("max_recv_token_num", int), "max_recv_token_num"),
    Offer("receive bound", "Leave it at 0: the operator computes it", options(max_recv_token_num=0), "max_recv"),
    Offer("weights forward", "topk_weights_type=1.*Leave it at 0", options(topk_weights_type=0), "topk_weights_type"),
    Offer("merging", "combine_comm_mode=1.*Set it to 0", options(combine_comm_mode=0), "combine_comm_mode"),
    Offer("combine", "vLLM: combine_quant=none", options(combine_quant="none"), "combine_quant"),
    Offer("one of two", "Drop combine_comm_mode or", options(combine_comm_mode=0), "combine_comm_mode = 1"),
    Offer("other of two", "or combine_quant", options(combine_quant="none"), "combine_comm_mode = 1"),
    Offer("shared", 'fuse_shared_experts to "auto"', options(fuse_shared_experts="auto"), "fuse_shared_experts"),
    Offer("topology", "inside one UB domain", options(topology="mte"), "topology"),
]


def told(question: Question) -> list[Violation]:
    return list(violations_of(draft_plan(question.engine, [question.layer], question.options)))


def take_all(questions: list[Question]) -> Counter[str]:
    """Try each different offer of each different sentence once; how many of each kind were there."""
    tried: set[tuple[str, ...]] = set()
    taken: Counter[str] = Counter()
    for question in questions:
        for sentence in map(str, told(question)):
            for offer in OFFERS:
                match = re.search(offer.found, sentence)
                if match is None or (offer.name, sentence) in tried:
                    continue
                tried.add((offer.name, sentence))
                values = match.group(1).split(", ") if match.groups() else [""]
                for value in values:
                    after = [str(v) for v in told(offer.take(question, value)) if re.search(offer.gone, str(v))]
                    assert after == [], (offer.name, value, sentence)
                taken[offer.name] += 1
    return taken


def test_every_offer_is_taken() -> None:
    taken = take_all(list(everything(20))[::3])
    assert set(taken) == {offer.name for offer in OFFERS}, {o.name for o in OFFERS} - set(taken)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(21, 25))
def test_more_offers_are_taken(seed: int) -> None:
    take_all(list(everything(seed)))


def test_950_of_9_1_offers_only_ranks_that_hold_the_experts() -> None:
    """256 experts, 16 at most on a rank (torch_api.txt:457): 16 ranks or more."""
    question = ask(
        ("950@9.1", "mte"), "auto", ActivationFacts(), "none", experts=(256, 8), ranks=(1, 4), requant="allow"
    )
    (sentence,) = [str(v) for v in told(question) if "experts" in v.got or "num_experts" in v.got]
    assert "from [16, 32, 64, 128, 256]." in sentence


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("use_case", ["a8w4-fp", "a8w8-int", "a16w16"])
def test_no_use_case_beyond_the_profile_is_planned(profile: tuple[str, str], use_case: str) -> None:
    """950@9.1 with a8w4-fp held once, and serving ended in an IndexError."""
    name = profile[0]
    runs = name == "none" or ((name == "950@9.2") == (use_case == "a8w4-fp") and name != "950@9.1")
    question = ask(profile, use_case, ActivationFacts(), "none", requant="allow")
    refused = [v for v in told(question) if v.where == "use_case"]
    assert bool(refused) != runs


@pytest.mark.parametrize("key", ALL)
@pytest.mark.parametrize("experts", [1, 8, 96, 256, 1024, 2048, 4096])
def test_legal_sizes_are_those_that_the_rules_take(key: str, experts: int) -> None:
    """Every size up to 1024 is asked of the rules of creation, and of the bound of a rank."""
    profile = profile_of(key)
    limits = limits_of(profile)

    def takes(size: int) -> bool:
        buffer = BufferFacts(
            ep_world_size=size, num_experts=experts, num_max_tokens_per_rank=1, num_topk=6, hidden=4096
        )
        broken = {b.rule for b in broken_by_buffer(profile, buffer)} & {"ep-size", "experts-divide", "created-experts"}
        return (
            not broken and experts // size <= limits.max_experts_per_rank.value and experts <= limits.max_experts.value
        )

    assert legal_ep_sizes(limits, [experts]) == tuple(size for size in range(1, 1025) if takes(size))
