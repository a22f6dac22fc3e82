"""`vllm-megamoe plan`: what it takes, and who answers."""

import typer

from vllm_megamoe import cli
from vllm_megamoe.cli import plan_options as take
from vllm_megamoe.cli.request import Place, Request, Target, megamoe_options

EPILOG = """\
Examples:

vllm-megamoe plan ./Qwen3-30B-A3B --profile a3@9.1 --tp 8 --dp 2

vllm-megamoe plan --from "HCCL_BUFFSIZE=200 vllm serve ./DeepSeek-V3 -tp 16 --enable-eplb" --profile a3@9.1

vllm-megamoe plan ./DeepSeek-V3 --as msmodelslim-w8a8 --profile a3@9.2 --max-model-len 16384

vllm-megamoe plan ./DeepSeek-V3 --as msmodelslim-w8a8 --profile a3@9.2 --search --devices 16 --target-ms 50

vllm-megamoe plan ./Qwen3-30B-A3B --compare all --json

vllm-megamoe plan ./Qwen3-30B-A3B --profile a3@9.2 --tp 8 --recv

vllm-megamoe plan ./Qwen3-30B-A3B --tp 8 --placement-from load.json --write-placement placement.json

Without --tp and --dp: 1 rank without a profile, else the largest legal number of ranks up to 8; more where these do not
hold the model.

Exit codes: 0 the plan holds (with --compare: under one profile at least; with --search: one split meets the targets),
or there are no experts; 1 rules are violated, all of them are listed; 2 wrong usage or a file that cannot be read.
"""


def plan(
    context: typer.Context,
    model: take.Model = None,
    line: take.Line = None,
    tp: take.Tp = None,
    dp: take.Dp = None,
    max_num_batched_tokens: take.Tokens = None,
    dtype: take.Dtype = "auto",
    draft: take.Draft = False,
    profile: take.Profile = None,
    topology: take.Topology = None,
    backend: take.Backend = None,
    use_case: take.UseCase = None,
    requant: take.Requant = None,
    max_padding_overhead: take.Padding = None,
    fuse_shared_experts: take.Fuse = None,
    combine_quant: take.CombineQuant = None,
    topk_weights_type: take.WeightsType = None,
    combine_comm_mode: take.CommMode = None,
    max_recv_token_num: take.Recv = None,
    allow_token_drop: take.Drop = None,
    workspace_budget_gib: take.Budget = None,
    expert_placement: take.Placement = None,
    placement_from: take.PlacementFrom = None,
    write_placement: take.WritePlacement = None,
    redundant_experts: take.Redundant = 0,
    device: take.Device = None,
    device_memory: take.DeviceMemory = None,
    memory_utilization: take.Utilization = None,
    max_model_len: take.Length = None,
    max_num_seqs: take.Sequences = None,
    kv_cache_dtype: take.CacheDtype = None,
    stored_as: take.StoredAs = None,
    memory_bandwidth: take.Bandwidth = None,
    link_bandwidth: take.Link = None,
    peak: take.Peak = None,
    router_skew: take.Skew = 0.0,
    explain: take.Explain = False,
    search: take.Search = False,
    devices: take.Devices = None,
    target_ms: take.TargetMs = None,
    target_sequences: take.TargetSequences = 1,
    json: take.Json = False,
    compare: take.Compare = None,
    plot: take.Plot = None,
    recv: take.Receive = False,
) -> None:
    """Plan a model before it is served: what runs where, what it needs, whether it fits, what is violated and what
    fixes it, and how fast it can be at best.

    Reads config.json alone, and quant_model_description.json or hf_quant_config.json beside it.
    """
    from vllm_megamoe.cli.answer import Asked, answer  # what --help does not need
    from vllm_megamoe.cli.balance import Balance

    place = Place(
        device,
        device_memory,
        memory_utilization,
        max_model_len,
        max_num_seqs,
        kv_cache_dtype,
        stored_as,
        memory_bandwidth,
        link_bandwidth,
        peak,
        router_skew,
        explain,
    )
    given = megamoe_options(context.params)
    request = Request(given, tp, dp, max_num_batched_tokens, dtype, draft, line, place)
    target = Target(devices, target_ms, target_sequences) if search else None
    balance = Balance.asked(placement_from, write_placement, redundant_experts)
    holds = answer(Asked(model, request, json, compare, plot, target, recv, balance))
    raise typer.Exit(cli.OK if holds else cli.REJECTED)
