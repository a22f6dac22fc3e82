"""`vllm-megamoe plan`: what a model's experts would run as, from config files alone."""

import typer

from vllm_megamoe.cli import exit_codes, options
from vllm_megamoe.cli.answer import Asked, answer
from vllm_megamoe.cli.given import megamoe_options
from vllm_megamoe.cli.request import Request

EPILOG = """\
Examples:

vllm-megamoe plan ./Qwen3-30B-A3B --profile a3@9.1 --tp 8 --dp 2

vllm-megamoe plan --from "HCCL_BUFFSIZE=200 vllm serve ./DeepSeek-V3 -tp 16 --enable-eplb" --profile a3@9.1

vllm-megamoe plan ./Qwen3-30B-A3B --compare all --json

Without --tp and --dp: 1 rank without a profile, else the largest legal number of ranks up to 8.

Exit codes: 0 the plan holds (with --compare: under one profile at least), or there are no experts; 1 rules are
violated, all of them are listed; 2 wrong usage or a file that cannot be read.
"""


def plan(
    context: typer.Context,
    model: options.Model = None,
    line: options.Line = None,
    tp: options.Tp = None,
    dp: options.Dp = None,
    max_num_batched_tokens: options.Tokens = None,
    dtype: options.Dtype = "auto",
    draft: options.Draft = False,
    profile: options.Profile = None,
    topology: options.Topology = None,
    backend: options.Backend = None,
    use_case: options.UseCase = None,
    requant: options.Requant = None,
    max_padding_overhead: options.Padding = None,
    fuse_shared_experts: options.Fuse = None,
    combine_quant: options.CombineQuant = None,
    topk_weights_type: options.WeightsType = None,
    combine_comm_mode: options.CommMode = None,
    max_recv_token_num: options.Recv = None,
    allow_token_drop: options.Drop = None,
    workspace_budget_gib: options.Budget = None,
    json: options.Json = False,
    compare: options.Compare = None,
    plot: options.Plot = None,
) -> None:
    """Plan a model before it is served: what runs where, what it needs, what is violated and what mends it.

    Reads config.json alone, and quant_model_description.json or hf_quant_config.json beside it.
    """
    given = megamoe_options(context.params)
    request = Request(given, tp, dp, max_num_batched_tokens, dtype, draft, line)
    holds = answer(Asked(model, request, json, compare, plot))
    raise typer.Exit(exit_codes.OK if holds else exit_codes.REFUSED)
