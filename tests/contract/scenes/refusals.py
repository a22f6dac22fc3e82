"""Configurations that must be rejected before a worker exists, and what is said of each."""

import os
from importlib import metadata
from typing import TYPE_CHECKING, Any
from unittest import mock

from contract.scenes.routing import WITH_DRAFT
from contract.support import engine

if TYPE_CHECKING:
    from contract.support.rank import Rank

Change = dict[str, Any]


def _given(**additional: Any) -> Change:
    return {"additional_config": additional}


CONSUMER = {"kv_connector": "MooncakeConnectorV1", "kv_role": "kv_consumer"}
CASES: dict[str, Change] = {
    "no expert parallelism": {"enable_expert_parallel": False},
    "one rank": {"tensor_parallel_size": 1, "distributed_executor_backend": None},
    "lora": {"enable_lora": True, "lora_target_modules": ["experts"]},
    "eplb": {"enable_eplb": True},
    "their map": _given(eplb_config={"expert_map_path": "map.json"}),
    "mix_placement": _given(mix_placement=True),
    "xlite": _given(xlite_graph_config={"enabled": True}),
    "fused_mc2": _given(enable_fused_mc2=2),
    "legacy": _given(enable_fused_mc2=1),
    "their bound": _given(mega_moe_max_tokens=4096),
    "their combine": _given(combine_quant_mode=4),
    "profile": _given(megamoe={"profile": "950@9.2"}),
    "no profile": _given(megamoe={"profile": "none"}),
    "backend": _given(megamoe={"backend": "cpu"}),
    "option": _given(megamoe={"use_cas": "auto"}),
    "consumer": {"kv_transfer_config": CONSUMER, "data_parallel_size": 2, "tensor_parallel_size": 1},
    "backend of experts": {"moe_backend": "triton"},
    "dtype": {"dtype": "float16"},
    "several": {
        "dtype": "float16",
        "enable_lora": True,
        "lora_target_modules": ["experts"],
        **_given(enable_fused_mc2=2, mix_placement=True, megamoe={"profile": "a2@9.1", "use_cas": "auto"}),
    },
}
SPECULATION = {"method": "mtp", "num_speculative_tokens": 1}
VARIABLES = {"VLLM_ASCEND_ENABLE_FUSED_MC2": "1", "VLLM_MEGAMOE_PROFILE": "a2@9.2", "HCCL_BUFFSIZE": "1"}
RELEASES = ("0.27.1rc1", "0.28.0rc1", "0.29.0rc1", "0.30.0rc1", "0.31.0")
"""Published before and after the one that a lane is written for."""


def run(rank: "Rank") -> dict[str, str]:
    """What is said of each case, empty where nothing is; `fine` is a configuration that holds."""
    folder = engine.Model().write(rank.own_folder("model"))
    said = {"fine": _said(folder, {})} | {name: _said(folder, change) for name, change in CASES.items()}
    for name, value in VARIABLES.items():
        with mock.patch.dict(os.environ, {name: value}):
            said[name] = _said(folder, {})
    whole = metadata.version
    for release in RELEASES:
        with mock.patch.object(
            metadata, "version", lambda name, r=release: r if name == "vllm-ascend" else whole(name)
        ):
            said[release] = _said(folder, {})
    # Of the draft alone: the model's own experts have none.
    drafted = engine.Model(changes=WITH_DRAFT).write(rank.own_folder("drafted"))
    said["backend of a draft"] = _said(drafted, {"speculative_config": SPECULATION | {"moe_backend": "triton"}})
    said["draft"] = _said(drafted, {"speculative_config": SPECULATION})
    wide = engine.Model(intermediate=4096).write(rank.own_folder("wide"))
    return said | {"wide": _said(wide, _given(enable_fused_mc2=2))}


def _said(folder: Any, change: Change) -> str:
    try:
        engine.make_config(folder, quantization="megamoe", **change)
    except Exception as error:  # what it says is judged by the tests
        return str(error)
    return ""
