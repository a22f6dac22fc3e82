"""The suite's own checks are asked whether they notice: each mutation must break the ones that are named here."""

from typing import Any

import pytest
from contract.support.cases import CASES, HIDDEN
from contract.support.dense import dense
from contract.support.values import rows_for

PRODUCT, TOKENS = "a2@9.2", 5
NOTICED: dict[str, set[str]] = {
    "none": set(),
    "selector not replaced": {"said"},
    "mask dropped": {"mask"},
    "rows split twice": {"rows", "mask"},
    "EP group in place of ours": {"group"},
    "w1 halves swapped": {"rows", "weights"},
    "reduction done twice": {"rows"},
    "bf16 router weights": {"said"},
    "wrong type code": {"said"},
    "weights not cast": {"said"},
    "cast without effect": {"said"},
    "small window on one rank": {"said"},
}
WORDS = {
    "selector not replaced": "ALLGATHER",
    "bf16 router weights": "topk_weights.dtype=BF16",
    "wrong type code": "weight",
    "weights not cast": "FRACTAL_NZ",
    "cast without effect": "npu_format_cast left a torch.int8 tensor",
    "small window on one rank": "ranks [0]: ",
}
"""What an error has to speak of, on every rank."""


@pytest.fixture(scope="module")
def answers() -> list[dict[str, Any]]:
    from contract.support.launch import run

    return run(PRODUCT, ["mutations"], ranks=2)["mutations"]


def problems(answer: dict[str, Any], right: dict[str, Any], rank: int) -> set[str]:
    """The checks that fail: those of the layer, of the calls, and that nothing was said."""
    if "said" in answer:
        return {"said"}
    case = next(case for case in CASES[PRODUCT] if case.name == "bf16")
    expected = dense(case, rows_for("bf16", TOKENS, HIDDEN))
    error = (answer["rows"].double() - expected).abs().amax(dim=1) / expected.abs().max()
    create, call = (event["given"] for event in answer["events"])
    good = right["events"][1]["given"]
    real = min(TOKENS, 3 * (rank + 1)) - 3 * rank
    mask = call["x_active_mask"]
    checks = {
        "rows": bool(error.max() < 0.01),
        "mask": mask is not None and mask["values"] == [1] * real + [0] * (3 - real),
        "weights": all(call[name] == good[name] for name in ("l1_weights", "l2_weights")),
        "group": create["group"]["group"] == answer["mc2 group"],
    }
    return {name for name, holds in checks.items() if not holds}


@pytest.mark.parametrize("name", NOTICED)
def test_a_mutation_is_noticed(name: str, answers: list[dict[str, Any]]) -> None:
    found: set[str] = set()
    for rank, answer in enumerate(answers):
        assert answer.keys() == NOTICED.keys()
        found |= problems(answer[name], answer["none"], rank)
        if name in WORDS:
            assert WORDS[name] in answer[name]["said"]
    assert found == NOTICED[name], [answer[name].get("said") for answer in answers]
