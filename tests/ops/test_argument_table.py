"""The argument table: equal to the public signatures, to both documents, and to the facts that rules look at."""

import inspect
import re
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import pytest

from vllm_megamoe import ops
from vllm_megamoe.ops.arguments import CALL, CREATE, Argument
from vllm_megamoe.profiles.facts import BufferFacts, CallFacts

TABLES = {"get_symm_buffer_for_mega_moe": CREATE, "mega_moe": CALL}

# torch_api.txt, Prototype, copied by hand: the API of CANN 9.1.0
RELEASE = {
    "get_symm_buffer_for_mega_moe": (
        "group num_experts num_max_tokens_per_rank num_topk hidden intermediate_hidden",
        {
            "max_recv_token_num": 0,
            "dispatch_quant_mode": 0,
            "dispatch_quant_out_dtype": None,
            "combine_quant_mode": 0,
            "comm_alg": "",
        },
    ),
    "mega_moe": (
        "x topk_ids topk_weights l1_weights l2_weights sym_buffer",
        {
            "l1_weights_sf": None,
            "l2_weights_sf": None,
            "l1_bias": None,
            "l2_bias": None,
            "x_active_mask": None,
            "activation": "swiglu",
            "activation_clamp": None,
            "weight1_type": None,
            "weight2_type": None,
        },
    ),
}
# operator_readme.txt, table of parameters, by hand: default of each later argument under its name there. An optional
# input without a default is a null pointer, DT_UNDEFINED is None in Python, and an empty list of numbers is None too.
README = {
    "topkWeightsType": ("topk_weights_type", 0),
    "combineCommMode": ("combine_comm_mode", 0),
    "activation_params": ("activation_params", None),
    "sharedWeight1": ("shared_l1_weights", None),
    "sharedWeight2": ("shared_l2_weights", None),
    "sharedWeightScales1": ("shared_l1_weights_sf", None),
    "sharedWeightScales2": ("shared_l2_weights_sf", None),
    "sharedBias1": ("shared_l1_bias", None),
    "sharedBias2": ("shared_l2_bias", None),
    "scales": ("scales", None),
    "sharedExpertQuantOutDtype": ("shared_expert_quant_out_dtype", None),
}
# Arguments of both, under the document's names: their defaults there must be the same.
BOTH = {
    "maxRecvTokenNum": ("max_recv_token_num", 0),
    "dispatchQuantMode": ("dispatch_quant_mode", 0),
    "combineQuantMode": ("combine_quant_mode", 0),
    "commAlg": ("comm_alg", ""),
    "activation": ("activation", "swiglu"),
}


def by_name(table: tuple[Argument, ...]) -> dict[str, Argument]:
    return {argument.name: argument for argument in table}


@pytest.mark.parametrize("function", TABLES)
def test_the_table_is_the_signature(function: str) -> None:
    parameters = inspect.signature(getattr(ops, function)).parameters
    assert [argument.name for argument in TABLES[function]] == list(parameters)
    for argument in TABLES[function]:
        parameter = parameters[argument.name]
        assert argument.function == function
        assert argument.is_required == (parameter.default is inspect.Parameter.empty)
        assert argument.is_required or argument.default == parameter.default
        assert (parameter.kind is inspect.Parameter.KEYWORD_ONLY) == (not argument.is_required)


@pytest.mark.parametrize("function", TABLES)
def test_revision_9_1_is_torch_api(function: str) -> None:
    required, optional = RELEASE[function]
    known = [argument for argument in TABLES[function] if argument.since == "9.1"]
    assert [argument.name for argument in known] == [*required.split(), *optional]
    assert {argument.name: argument.default for argument in known if not argument.is_required} == optional


@pytest.mark.parametrize("function", TABLES)
def test_the_prototype_of_the_document_says_so(function: str, shared_dir: Path) -> None:
    """The lists above, against the document itself."""
    text = (shared_dir / "spec" / "torch_api.txt").read_text(encoding="utf-8")
    found = re.search(rf"^{function}\((.*)\) ->", text.split("Prototype", 1)[1], re.MULTILINE)
    assert found
    required, optional = RELEASE[function]
    written = [*required.split(), "*", *(f"{name}={value!r}" for name, value in optional.items())]
    assert found[1].replace('"', "'").split(", ") == written


@pytest.mark.parametrize(("document", "known"), [*README.items(), *BOTH.items()], ids=lambda v: str(v))
def test_defaults_of_the_newer_document(document: str, known: tuple[str, Any], shared_dir: Path) -> None:
    name, default = known
    argument = (by_name(CREATE) | by_name(CALL))[name]
    assert argument.default == default
    assert (argument.since == "9.1") == (document in BOTH)
    lines = (shared_dir / "spec" / "operator_readme.txt").read_text(encoding="utf-8").splitlines()
    row = next(line for line in lines if line.startswith(f"{document}\t"))
    if isinstance(default, int):
        assert re.search(rf"默认值为{default}(\W|$)", row)
    elif isinstance(default, str):
        assert f'默认值为"{default}"' in row
    else:
        assert "可选输入" in row or "默认值为DT_UNDEFINED" in row or "默认值为[]" in row


def test_what_all_ranks_must_give_alike() -> None:
    # operator_readme.txt, consistency: moeExpertNum, maxRecvTokenNum, dispatchQuantMode, dispatchQuantOutDtype,
    # numMaxTokensPerRank, topkWeightsType, combineCommMode; num_topk, hidden and the combine's form decide the records
    # that travel, so the twin compares them too.
    assert {argument.name for argument in (*CREATE, *CALL) if argument.agreed} == {
        "num_experts",
        "max_recv_token_num",
        "dispatch_quant_mode",
        "dispatch_quant_out_dtype",
        "num_max_tokens_per_rank",
        "topk_weights_type",
        "combine_comm_mode",
        "num_topk",
        "hidden",
        "combine_quant_mode",
    }


def test_facts_have_the_tables_defaults() -> None:
    known = by_name(CREATE) | by_name(CALL)
    compared = set()
    for facts in (BufferFacts, CallFacts):
        for f in fields(facts):
            if f.name in known and f.default is not MISSING:
                assert f.default == known[f.name].default, f.name
                compared.add(f.name)
    assert compared >= {a.name for a in CREATE if not a.is_required} | {"activation", "activation_clamp"}
    assert {a.name for a in CREATE if a.is_required} - {"group", "intermediate_hidden"} <= {
        f.name for f in fields(BufferFacts) if f.default is MISSING
    }


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("dispatch_quant_mode", 0, True),
        ("dispatch_quant_mode", 2, False),
        ("dispatch_quant_mode", False, False),
        ("comm_alg", "", True),
        ("activation", "swiglu", True),
        ("activation", "situglu", False),
        ("activation_params", None, True),
        ("activation_params", {}, False),
        ("scales", None, True),
        ("hidden", None, False),
    ],
)
def test_what_leaving_an_argument_out_says_too(name: str, value: Any, expected: bool) -> None:
    assert (by_name(CREATE) | by_name(CALL))[name].is_default(value) == expected
