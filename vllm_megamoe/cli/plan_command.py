"""`vllm-megamoe plan`: its options, one name each; the megamoe ones have the names of `--additional-config`."""

from pathlib import Path
from typing import Annotated

import typer

from vllm_megamoe import cli
from vllm_megamoe.cli.answer import Asked, answer
from vllm_megamoe.cli.balance import Balance
from vllm_megamoe.cli.request import Request, megamoe_options

_MEGAMOE = "Options of --additional-config"
_ENGINE = "The engine"
_BALANCE = "Write an expert placement"
_OUTPUT = "Output"

Model = Annotated[
    str | None, typer.Argument(help="Folder of a checkpoint, or its config.json. Weights are not needed.")
]
Line = Annotated[
    str | None, typer.Option("--from", help='Read an existing command line: "vllm serve ...".', show_default=False)
]
Tp = Annotated[int | None, typer.Option("--tp", min=1, help="Tensor parallel size.", rich_help_panel=_ENGINE)]
Dp = Annotated[int | None, typer.Option("--dp", min=1, help="Data parallel size.", rich_help_panel=_ENGINE)]
Tokens = Annotated[
    int | None, typer.Option(min=1, help="Scheduler's bound of tokens per step [2048].", rich_help_panel=_ENGINE)
]
Draft = Annotated[
    bool, typer.Option("--draft", help="Plan draft (MTP) layers too, for speculation.", rich_help_panel=_ENGINE)
]
Dtype = Annotated[str, typer.Option(help="As vLLM's --dtype.", rich_help_panel=_ENGINE)]

Profile = Annotated[
    str | None,
    typer.Option(
        help="none, a2@9.1, a3@9.1, 950@9.1, a2@9.2, a3@9.2, 950@9.2 [VLLM_MEGAMOE_PROFILE, else none].",
        rich_help_panel=_MEGAMOE,
    ),
]
Topology = Annotated[str | None, typer.Option(help="auto, mte, urma (950).", rich_help_panel=_MEGAMOE)]
Backend = Annotated[str | None, typer.Option(help="auto, cann, cpu.", rich_help_panel=_MEGAMOE)]
UseCase = Annotated[
    str | None,
    typer.Option(help="auto, a16w16, a8w8-int, a8w4-int, a8w8-fp, a8w4-fp, a4w4-fp.", rich_help_panel=_MEGAMOE),
]
Requant = Annotated[str | None, typer.Option(help="strict, or allow for a lossy conversion.", rich_help_panel=_MEGAMOE)]
Padding = Annotated[float | None, typer.Option(help="Most padding, 0.35 for 35 %.", rich_help_panel=_MEGAMOE)]
Fuse = Annotated[str | None, typer.Option(help="auto, on, off.", rich_help_panel=_MEGAMOE)]
CombineQuant = Annotated[str | None, typer.Option(help="none, e5m2, e4m3.", rich_help_panel=_MEGAMOE)]
WeightsType = Annotated[int | None, typer.Option(help="1 sends router weights along.", rich_help_panel=_MEGAMOE)]
CommMode = Annotated[int | None, typer.Option(help="1 sends one row per rank back.", rich_help_panel=_MEGAMOE)]
Recv = Annotated[int | None, typer.Option(help="Rows that a rank makes room for.", rich_help_panel=_MEGAMOE)]
Drop = Annotated[
    bool | None, typer.Option("--allow-token-drop", help="Accept lost rows below that.", rich_help_panel=_MEGAMOE)
]
Budget = Annotated[float | None, typer.Option(help="GiB of workspace [2].", rich_help_panel=_MEGAMOE)]
Placement = Annotated[str | None, typer.Option(help="File of each layer's slots of experts.", rich_help_panel=_MEGAMOE)]

From = Annotated[
    str | None,
    typer.Option(
        "--placement-from",
        help="Share the load of this file (VLLM_MEGAMOE_LOAD_FILE) evenly over the ranks.",
        rich_help_panel=_BALANCE,
    ),
]
Write = Annotated[
    Path | None,
    typer.Option("--write-placement", help="The placement file to write.", rich_help_panel=_BALANCE),
]
Redundant = Annotated[
    int, typer.Option(min=0, help="Slots beyond one for each expert, in every layer.", rich_help_panel=_BALANCE)
]

Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.", rich_help_panel=_OUTPUT)]
Compare = Annotated[
    str | None, typer.Option(help="Profiles side by side: a3@9.1,950@9.2 or all.", rich_help_panel=_OUTPUT)
]
Plot = Annotated[
    Path | None,
    typer.Option(help="Draw memory and wire bytes over EP size (.png, .svg, .pdf).", rich_help_panel=_OUTPUT),
]


EPILOG = """\
Examples:

vllm-megamoe plan ./Qwen3-30B-A3B --profile a3@9.1 --tp 8 --dp 2

vllm-megamoe plan --from "HCCL_BUFFSIZE=200 vllm serve ./DeepSeek-V3 -tp 16 --enable-eplb" --profile a3@9.1

vllm-megamoe plan ./Qwen3-30B-A3B --compare all --json

vllm-megamoe plan ./Qwen3-30B-A3B --tp 8 --placement-from load.json --write-placement placement.json

Without --tp and --dp: 1 rank without a profile, else the largest legal number of ranks up to 8.

Exit codes: 0 the plan holds (with --compare: under one profile at least), or there are no experts; 1 rules are
violated, all of them are listed; 2 wrong usage or a file that cannot be read.
"""


def plan(
    context: typer.Context,
    model: Model = None,
    line: Line = None,
    tp: Tp = None,
    dp: Dp = None,
    max_num_batched_tokens: Tokens = None,
    dtype: Dtype = "auto",
    draft: Draft = False,
    profile: Profile = None,
    topology: Topology = None,
    backend: Backend = None,
    use_case: UseCase = None,
    requant: Requant = None,
    max_padding_overhead: Padding = None,
    fuse_shared_experts: Fuse = None,
    combine_quant: CombineQuant = None,
    topk_weights_type: WeightsType = None,
    combine_comm_mode: CommMode = None,
    max_recv_token_num: Recv = None,
    allow_token_drop: Drop = None,
    workspace_budget_gib: Budget = None,
    expert_placement: Placement = None,
    placement_from: From = None,
    write_placement: Write = None,
    redundant_experts: Redundant = 0,
    json: Json = False,
    compare: Compare = None,
    plot: Plot = None,
) -> None:
    """Plan a model before it is served: what runs where, what it needs, what is violated and what fixes it.

    Reads config.json alone, and quant_model_description.json or hf_quant_config.json beside it.
    """
    given = megamoe_options(context.params)
    request = Request(given, tp, dp, max_num_batched_tokens, dtype, draft, line)
    balance = Balance.asked(placement_from, write_placement, redundant_experts)
    holds = answer(Asked(model, request, json, compare, plot, balance))
    raise typer.Exit(cli.OK if holds else cli.REJECTED)
