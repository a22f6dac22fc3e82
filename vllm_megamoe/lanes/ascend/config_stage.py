"""The config stage: our options taken out of vllm-ascend's sight, and all of its settings that contradict us.

vllm-ascend forbids keys of additional_config that it does not know (ascend_config.py, extra="forbid"), in every process
that reads it. The plan, which travels on the quantisation config, holds the options from here on.
"""

import os
from collections.abc import Iterator, Mapping
from typing import Any

from vllm_megamoe.errors import ConfigError
from vllm_megamoe.lanes.ascend import machine, moe_rows
from vllm_megamoe.plan.options import KEY, Options
from vllm_megamoe.plan.verdict import Violation


def settle(vllm_config: Any, options: Options) -> tuple[Options, list[str]]:
    """The options with this machine's profile and the CANN backend, and what contradicts them."""
    wrong = [str(violation) for violation in contradictions(vllm_config, options)]
    try:
        found = machine.installed_profile(machine.built_for())
    except ConfigError as error:
        return options, [*wrong, str(error)]
    wrong += machine.contradicted(options, found)
    return options.model_copy(update={"profile": found, "backend": "cann"}), wrong


def prepare(vllm_config: Any) -> None:
    """Take our block out of additional_config, and have rows prepared for us in this process too."""
    given = vllm_config.additional_config
    if isinstance(given, Mapping) and KEY in given:
        # A new mapping: the user's own may serve to make another engine.
        vllm_config.additional_config = {name: value for name, value in given.items() if name != KEY}
    moe_rows.always_as_mc2()


def contradictions(vllm_config: Any, options: Options) -> Iterator[Violation]:
    """Settings of vllm-ascend's, of vLLM's and of ours that cannot hold together with the operator."""
    given = vllm_config.additional_config
    given = given if isinstance(given, Mapping) else {}
    if options.backend == "cpu":
        yield Violation("options", "backend = 'cpu'", "'auto' or 'cann' on an NPU", "Drop backend.")
    yield from _switches(given)
    yield from _environment()
    yield from _expert_placement(given, options)
    yield from _consumer(vllm_config, given)


_MEGAMOE = "0: with --quantization megamoe vllm-ascend's own path to this operator, or to its kin, stays off"
_OTHER_PLACE = 'Drop it; the megamoe options have "max_recv_token_num" with "allow_token_drop".'
_OFF: dict[str, tuple[str, str]] = {
    "enable_fused_mc2": (_MEGAMOE, "Drop it."),
    "mega_moe_max_tokens": ("rows that no one drops unasked", _OTHER_PLACE),
    "combine_quant_mode": ("0", 'Drop it; the megamoe options have "combine_quant".'),
    "mix_placement": ("shared experts that stand on no expert's place", "Drop it."),
    "enable_force_eplb": ("tokens that go where the router sends them", "Drop it."),
}
"""Keys of additional_config whose every value but 0 and false contradicts us: what is expected, what to do."""


def _switches(given: Mapping[str, Any]) -> Iterator[Violation]:
    for key, (expected, remedy) in _OFF.items():
        value = given.get(key)
        if value:
            yield Violation("additional_config", f"{key} = {value!r}", expected, remedy)
    graph = given.get("xlite_graph_config")
    if isinstance(graph, Mapping) and graph.get("enabled"):
        yield Violation(
            "additional_config",
            "xlite_graph_config.enabled = true",
            "vLLM's own model code: xlite runs the model without its MoE layers' methods",
            "Drop xlite_graph_config.",
        )


_VARIABLES = ("VLLM_ASCEND_ENABLE_FUSED_MC2", "VLLM_ASCEND_ENABLE_MEGA_MOE")
_NO = ("", "0", "false", "False")


def _environment() -> Iterator[Violation]:
    for name in _VARIABLES:
        value = os.environ.get(name, "")
        if value not in _NO:
            yield Violation("environment", f"{name}={value}", _MEGAMOE, f"Unset {name}.")


def _expert_placement(given: Mapping[str, Any], options: Options) -> Iterator[Violation]:
    """vllm-ascend's balancing moves experts between ranks (lanes.ascend.eplb); its other layouts are not ours."""
    balancing = given.get("eplb_config")
    if not isinstance(balancing, Mapping):
        return
    for key in ("expert_map_path", "num_redundant_experts"):
        if balancing.get(key):
            yield Violation(
                "additional_config",
                f"eplb_config.{key} = {balancing[key]!r}",
                "each expert in one slot at the start, in rank order",
                f'Drop eplb_config.{key}; the megamoe option "expert_placement" places experts, redundant ones too.',
            )
    if (balancing.get("dynamic_eplb") or balancing.get("expert_map_record_path")) and options.expert_placement:
        yield Violation(
            "additional_config",
            "eplb_config.dynamic_eplb with expert_placement",
            "one of both: each decides where experts stand",
            "Drop expert_placement or eplb_config.dynamic_eplb.",
        )


def _consumer(vllm_config: Any, given: Mapping[str, Any]) -> Iterator[Violation]:
    """A KV consumer may skip the exchange of row counts between data-parallel ranks, and then ranks' calls differ.

    vllm-ascend does so where all steps run as MC2 and either prefill and decode share one graph mode, or the recompute
    scheduler is on (utils.py, should_skip_allreduce_across_dp_group).
    """
    transfer, parallel = vllm_config.kv_transfer_config, vllm_config.parallel_config
    if transfer is None or not transfer.is_kv_consumer or parallel.data_parallel_size == 1:
        return
    scheduler = given.get("scheduler_config")
    scheduler = scheduler if isinstance(scheduler, Mapping) else {}
    recomputes = scheduler.get("recompute_scheduler_enable") or given.get("recompute_scheduler_enable")
    hierarchy = given.get("mc2_comm_alg") == "hierarchy" or given.get("enable_mc2_hierarchy_comm")
    mode = vllm_config.compilation_config.cudagraph_mode
    eager = vllm_config.model_config.enforce_eager or mode is None
    if hierarchy or not (recomputes or eager or not mode.separate_routine()):
        return
    why = "recompute_scheduler_enable" if recomputes else "one graph mode for prefill and decode"
    yield Violation(
        "data parallelism",
        f"a KV consumer that skips the exchange of row counts between data-parallel ranks ({why})",
        "the exchange before every step: all ranks make the same calls",
        "Use --data-parallel-size 1 on this node, or have cudagraph_mode FULL_DECODE_ONLY or FULL_AND_PIECEWISE and no "
        "recompute_scheduler_enable.",
    )
