"""The options of `plan`, one name each; the megamoe ones have the names of `--additional-config`."""

from pathlib import Path
from typing import Annotated

import typer

_MEGAMOE = "Options of --additional-config"
_ENGINE = "The engine"
_PLACE = "Memory and speed"
_SEARCH = "Search"
_BALANCE = "Write an expert placement"
_OUTPUT = "Output"
_MOST = 1e9
"""Beyond what any device has; keeps infinite numbers out."""

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

Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.", rich_help_panel=_OUTPUT)]
Compare = Annotated[
    str | None, typer.Option(help="Profiles side by side: a3@9.1,950@9.2 or all.", rich_help_panel=_OUTPUT)
]
Receive = Annotated[
    bool,
    typer.Option("--recv", help="Show which max_recv_token_num is needed, what one covers.", rich_help_panel=_OUTPUT),
]
Plot = Annotated[
    Path | None,
    typer.Option(help="Draw memory and wire bytes over EP size (.png, .svg, .pdf).", rich_help_panel=_OUTPUT),
]

Device = Annotated[
    str | None,
    typer.Option(
        help="a2-64, a2-32, a3, 950dt-96, 950dt-144, 950pr-112, 950pr-128 [the profile's].", rich_help_panel=_PLACE
    ),
]
DeviceMemory = Annotated[
    float | None, typer.Option(min=0.1, max=_MOST, help="GiB of a device, in place of its own.", rich_help_panel=_PLACE)
]
Utilization = Annotated[
    float | None,
    typer.Option(min=0.01, max=1.0, help="As vLLM's --gpu-memory-utilization [0.92].", rich_help_panel=_PLACE),
]
Length = Annotated[
    int | None, typer.Option(min=1, help="Tokens of the longest sequence [the model's].", rich_help_panel=_PLACE)
]
Sequences = Annotated[int | None, typer.Option(min=1, help="Sequences of a step [256].", rich_help_panel=_PLACE)]
CacheDtype = Annotated[str | None, typer.Option(help="As vLLM's flag: auto, fp8, int8.", rich_help_panel=_PLACE)]
StoredAs = Annotated[
    str | None,
    typer.Option(
        "--as",
        help="Plan a checkpoint that you do not have yet: msmodelslim-w8a8, msmodelslim-w4a8, mxfp8, mxfp4, fp8-block.",
        rich_help_panel=_PLACE,
    ),
]
Bandwidth = Annotated[
    float | None, typer.Option(min=0.1, max=_MOST, help="GB/s of a device's memory.", rich_help_panel=_PLACE)
]
Link = Annotated[
    float | None, typer.Option(min=0.1, max=_MOST, help="GB/s to other devices, one direction.", rich_help_panel=_PLACE)
]
Peak = Annotated[
    float | None, typer.Option(min=0.1, max=_MOST, help="TFLOPS or TOPS of a device.", rich_help_panel=_PLACE)
]
Skew = Annotated[
    float,
    typer.Option(
        min=0.0, max=4.0, help="Router's power law: the i-th expert is as popular as i ** -S.", rich_help_panel=_PLACE
    ),
]
Explain = Annotated[bool, typer.Option("--explain", help="Show how the bounds come about.", rich_help_panel=_PLACE)]

Search = Annotated[
    bool, typer.Option("--search", help="Rank the legal splits of --devices by bounds.", rich_help_panel=_SEARCH)
]
Devices = Annotated[int | None, typer.Option(min=1, help="Devices to split.", rich_help_panel=_SEARCH)]
TargetMs = Annotated[
    float | None,
    typer.Option(min=0.001, max=_MOST, help="Most milliseconds of a decode step.", rich_help_panel=_SEARCH),
]
TargetSequences = Annotated[
    int, typer.Option(min=1, help="Fewest sequences of full length that must fit.", rich_help_panel=_SEARCH)
]

Placement = Annotated[str | None, typer.Option(help="File of each layer's slots of experts.", rich_help_panel=_MEGAMOE)]
PlacementFrom = Annotated[
    str | None,
    typer.Option(
        "--placement-from",
        help="Share the load of this file (VLLM_MEGAMOE_LOAD_FILE) evenly over the ranks.",
        rich_help_panel=_BALANCE,
    ),
]
WritePlacement = Annotated[
    Path | None, typer.Option("--write-placement", help="The placement file to write.", rich_help_panel=_BALANCE)
]
Redundant = Annotated[
    int, typer.Option(min=0, help="Slots beyond one for each expert, in every layer.", rich_help_panel=_BALANCE)
]
