"""What vllm-ascend's tutorials deploy, row by row of ../shared/facts/deployments.md, as the command lines they are.

The table leaves some flags out that decide about memory; those stand in `ALSO`, from the same tutorials.
"""

import json
from dataclasses import dataclass
from pathlib import Path

CONFIGS = {
    "DeepSeek-R1": "deepseek-ai--DeepSeek-R1",
    "DeepSeek-V3.1": "deepseek-ai--DeepSeek-V3",
    "DeepSeek-V3.2": "nvidia--DeepSeek-V3.2-NVFP4",
    "DeepSeek-V4-Flash": "deepseek-ai--DeepSeek-V4-Flash",
    "DeepSeek-V4-Pro": "deepseek-ai--DeepSeek-V4-Pro",
    "GLM5": "zai-org--GLM-5",
    "GLM5.2": "nvidia--GLM-5.2-NVFP4",
    "GLM5.3": "zai-org--GLM-5.3",
    "Kimi-K2.5": "moonshotai--Kimi-K2.5",
    "Kimi-K2.6": "nvidia--Kimi-K2.6-NVFP4",
    "MiniMax-M2": "nvidia--MiniMax-M2.7-NVFP4",
    "MiniMax-M3": "MiniMaxAI--MiniMax-M3",
    "Qwen3-235B-A22B": "Qwen--Qwen3-235B-A22B",
    "Qwen3-30B-A3B": "Qwen--Qwen3-30B-A3B",
    "Qwen3-Coder-30B-A3B": "Qwen--Qwen3-30B-A3B",
    "Qwen3-VL-235B-A22B-Instruct": "Qwen--Qwen3-VL-235B-A22B-Instruct",
    "Qwen3-VL-30B-A3B-Instruct": "Qwen--Qwen3-VL-30B-A3B-Instruct",
    "Qwen3.5-397B-A17B": "Qwen--Qwen3.5-397B-A17B",
    "Qwen3.6-35B-A3B": "nvidia--Qwen3.6-35B-A3B-NVFP4",
}
"""Tutorial -> the config at hand with the same sizes (of another quantisation at times: `--as` says the tutorial's)."""

_PP, _INT8 = "--pipeline-parallel-size 2", "--kv-cache-dtype int8"
ALSO = {
    # (tutorial, checkpoint, tp, dp, max-model-len) -> (format where the row names no checkpoint, further flags)
    ("GLM5.2", "GLM-5.2-w4a8c8", "8", "2", "-"): ("", "--max-model-len 40000"),
    ("GLM5.2", "?", "16", "-", "202752"): ("msmodelslim-w8a8", _PP),
    ("GLM5.2", "?", "16", "1", "1024000"): ("msmodelslim-w4a8", f"{_INT8} --decode-context-parallel-size 16"),
    ("GLM5.2", "?", "8", "4", "1024000"): ("msmodelslim-w4a8", f"{_INT8} --decode-context-parallel-size 8"),
    ("GLM5.3", "?", "16", "-", "200000"): ("msmodelslim-w8a8", f"{_PP} {_INT8}"),
    ("GLM5", "GLM5-w4a4", "8", "1", "202752"): ("", "--kv-cache-dtype fp8"),
    ("GLM5", "GLM-5.1-W8A8C8-MTP", "16", "-", "202752"): ("", f"{_PP} {_INT8}"),
    ("MiniMax-M3", "?", "16", "-", "43008"): ("bf16", ""),
    ("MiniMax-M3", "?", "4", "4", "131072"): ("msmodelslim-w8a8", ""),
    ("MiniMax-M3", "?", "4", "2", "140000"): ("mxfp8", "--kv-cache-dtype fp8"),
    ("MiniMax-M3", "?", "8", "4", "65920"): ("bf16", ""),
    ("MiniMax-M3", "?", "4", "8", "131072"): ("msmodelslim-w8a8", ""),
}
_LONGER, _POSITIONS = ("Qwen3-235B-A22B", "Qwen3-30B-A3B", "Qwen3-Coder-30B-A3B"), 40960
"""Tutorials that serve a later release, with more positions than the config at hand has."""
_UNNAMED = "msmodelslim-w8a8"
"""Rows without a checkpoint's name serve W8A8: they carry `--quantization ascend`."""


@dataclass(frozen=True)
class Deployment:
    """One row.

    Attributes:
        name: for the test's id.
        config: file of ../shared/model_configs.
        stored_as, profile: what `plan` is told beside the line.
        line: the command line.
        tensor, data, stages: its sizes.
        switch: `enable_fused_mc2` as written, empty where the row has none.
    """

    name: str
    config: str
    stored_as: str
    profile: str
    line: str
    tensor: int
    data: int
    stages: int
    switch: str

    def on(self, tensor: int, data: int) -> str:
        """The line on other sizes."""
        line = self.line.replace(f"--tensor-parallel-size {self.tensor}", f"--tensor-parallel-size {tensor}")
        return line.replace(f"--data-parallel-size {self.data}", f"--data-parallel-size {data}")


def stored_as(checkpoint: str) -> str:
    """The format that a checkpoint's name says."""
    name = checkpoint.lower()
    for word, form in (("mxfp8", "msmodelslim-mxfp8"), ("w4a4", "msmodelslim-w4a4"), ("w4a8", "msmodelslim-w4a8")):
        if word in name:
            return form
    return "msmodelslim-w8a8" if "w8a8" in name else _UNNAMED if checkpoint == "?" else "bf16"


def deployments(shared: Path) -> list[Deployment]:
    """All rows whose config is at hand."""
    found: list[Deployment] = []
    for text in (shared / "facts" / "deployments.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in text.strip("|").split("|")]
        if text.startswith("|") and len(cells) == 11 and cells[0] in CONFIGS:
            found.append(_deployment(len(found), *cells))
    return found


def _deployment(
    number: int,
    tutorial: str,
    checkpoint: str,
    tensor: str,
    data: str,
    length: str,
    tokens: str,
    sequences: str,
    share: str,
    switch: str,
    buffsize: str,
    speculation: str,
) -> Deployment:
    form, also = ALSO.get((tutorial, checkpoint, tensor, data, length), ("", ""))
    form = form or stored_as(checkpoint)
    words = [f"HCCL_BUFFSIZE={buffsize}"] if buffsize != "-" else []
    if tutorial in _LONGER and length.isdecimal() and int(length) > _POSITIONS:
        words.append("VLLM_ALLOW_LONG_MAX_MODEL_LEN=1")
    words += [f"vllm serve ./{tutorial}", f"--tensor-parallel-size {tensor}"]
    words += [f"--data-parallel-size {data}"] if data not in ("-", "1") else []
    words += ["--enable-expert-parallel", "--trust-remote-code", "--quantization ascend"]
    for flag, value in (
        ("max-model-len", length),
        ("max-num-batched-tokens", tokens),
        ("max-num-seqs", sequences),
        ("gpu-memory-utilization", share),
    ):
        words += [f"--{flag} {value}"] if value != "-" else []
    if "c8" in checkpoint.lower() and "kv-cache" not in also:
        words.append(_INT8)
    if switch != "-":
        words.append(f"--additional-config '{json.dumps({'enable_fused_mc2': int(switch in ('1', 'true'))})}'")
    if speculation == "yes":
        words.append("""--speculative-config '{"method": "mtp", "num_speculative_tokens": 3}'""")
    return Deployment(
        f"{number:02}-{tutorial}-{checkpoint}".replace("?", form),
        CONFIGS[tutorial],
        form,
        "950@9.2" if "mxfp" in form or form == "msmodelslim-w4a4" else "a3@9.2",
        " ".join([*words, also]).strip(),
        int(tensor),
        1 if data == "-" else int(data),
        2 if _PP in also else 1,
        switch if switch != "-" else "",
    )
