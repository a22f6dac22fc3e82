"""Options are read word by word; every wrong word is named with the right one beside it."""

import json

import pytest

from vllm_megamoe.errors import ConfigError
from vllm_megamoe.plan.options import Options

# Names and defaults as the design fixes them, and a placement of experts behind them.
FIXED = {
    "profile": None,
    "topology": "auto",
    "backend": "auto",
    "use_case": "auto",
    "requant": "strict",
    "max_padding_overhead": 0.35,
    "fuse_shared_experts": "auto",
    "combine_quant": "none",
    "topk_weights_type": 0,
    "combine_comm_mode": 0,
    "max_recv_token_num": 0,
    "allow_token_drop": False,
    "workspace_budget_gib": 2.0,
    "expert_placement": None,
}


def test_names_and_defaults_are_the_designs() -> None:
    assert Options().model_dump() == FIXED


@pytest.mark.parametrize("config", [{}, {"refresh": True}, None, {"megamoe": {}}])
def test_absent_section_means_defaults(config: object) -> None:
    assert Options.parse(config) == Options()


def test_misspelt_option_names_the_nearest_and_all() -> None:
    with pytest.raises(ConfigError, match="'use_csae' is not an option; did you mean 'use_case'") as caught:
        Options.parse({"megamoe": {"use_csae": "auto"}})
    assert all(name in str(caught.value) for name in FIXED)


def test_misspelt_value_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"use_case = 'a8w8int'.*did you mean 'a8w8-int'"):
        Options.parse({"megamoe": {"use_case": "a8w8int"}})


def test_all_wrong_options_come_at_once() -> None:
    wrong = {"requant": "yes", "max_recv_token_num": -1, "topk_weight_type": 1, "allow_token_drop": "no"}
    with pytest.raises(ConfigError) as caught:
        Options.parse({"megamoe": wrong})
    assert all(name in str(caught.value) for name in wrong)


def test_right_options_survive_beside_wrong_ones() -> None:
    options, wrong = Options.read({"megamoe": {"use_case": "a8w8-int", "requant": "yes"}})
    assert options.use_case == "a8w8-int"
    assert len(wrong) == 1


@pytest.mark.parametrize("config", [{"megamoe": "a8w8-int"}, {"megamoe": None}, ["megamoe"], "megamoe", 1, True])
def test_what_is_no_object_is_rejected(config: object) -> None:
    with pytest.raises(ConfigError, match="expected an object such as"):
        Options.parse(config)


MISSPELT = ["megamo", "mega_moe", "MegaMoE", "mega-moe", "megamoe_", "vllm_megamoe", "meagmoe", "megamoee"]


@pytest.mark.parametrize("name", MISSPELT)
def test_a_misspelt_block_is_not_ignored(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"additional_config has '{name}'; expected 'megamoe'\."):
        Options.parse({name: {"use_case": "a8w8-int"}})


@pytest.mark.parametrize("name", FIXED)
def test_an_option_outside_of_its_block_is_not_ignored(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"the option '{name}' outside of 'megamoe'; expected .*\"{name}\": \"x\""):
        Options.parse({name: "x"})


def test_all_that_is_misplaced_comes_at_once() -> None:
    config = {"use_case": "a8w8-int", "requant": "allow", "megamo": {}, "megamoe": {"topolgy": "mte"}}
    options, wrong = Options.read(config)
    assert options == Options()
    assert len(wrong) == 4
    for sentence, part in zip(
        wrong, ("'use_case' outside", "'requant' outside", "'megamo'; exp", "'topolgy'"), strict=True
    ):
        assert part in sentence


# Keys of vllm-ascend 0.30's AscendConfig and of releases before it, which reads the same mapping.
PLATFORM = [
    "ascend_scheduler_config",
    "torchair_graph_config",
    "ascend_compilation_config",
    "ascend_fusion_config",
    "weight_prefetch_config",
    "xlite_graph_config",
    "finegrained_tp_config",
    "eplb_config",
    "enable_fused_mc2",
    "mega_moe_max_tokens",
    "multistream_overlap_shared_expert",
    "enable_shared_expert_dp",
    "expert_map_path",
    "dynamic_eplb",
    "refresh",
    "rl_config",
]


@pytest.mark.parametrize("key", PLATFORM)
def test_the_platforms_own_keys_pass(key: str) -> None:
    assert Options.read({key: {"use_case": 1}, "megamoe": {"requant": "allow"}}) == (Options(requant="allow"), [])


@pytest.mark.parametrize("product", ["310P", "200I", "Atlas 500", "910A"])
def test_products_without_the_operator_are_rejected_by_name(product: str) -> None:
    with pytest.raises(ConfigError, match=rf"profile='{product}': the operator mega_moe does not exist"):
        Options.parse({"megamoe": {"profile": product}})


def test_a_misspelt_profile_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"profile='a3@9\.3'.*Did you mean 'a3@9\.2'"):
        Options.parse({"megamoe": {"profile": "a3@9.3"}})


@pytest.mark.parametrize("name", ["max_padding_overhead", "workspace_budget_gib"])
@pytest.mark.parametrize("value", ["Infinity", "-Infinity", "NaN"])
def test_a_bound_is_a_finite_number(name: str, value: str) -> None:
    # Python's JSON, and so --additional-config, knows these words.
    with pytest.raises(ConfigError, match=name):
        Options.parse(json.loads(f'{{"megamoe": {{"{name}": {value}}}}}'))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_recv_token_num", "5"),
        ("max_recv_token_num", 5.0),
        ("max_recv_token_num", True),
        ("allow_token_drop", "yes"),
        ("allow_token_drop", 1),
        ("max_padding_overhead", "0.5"),
        ("workspace_budget_gib", True),
        ("profile", 3),
    ],
    ids=repr,
)
def test_a_value_of_another_kind_is_not_turned_into_one_that_fits(name: str, value: object) -> None:
    options, (sentence,) = Options.read({"megamoe": {name: value}})
    assert options == Options()
    assert f"{name} = {value!r}; expected a valid " in sentence
    assert "leave it out for " in sentence
