"""vllm-ascend's own engine with two workers, from start to ready, three dummy batches, and what its end leaves."""

import os
from collections import Counter
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from asked import FOLDER
from contract.support import engine
from contract.support.rank import Rank

from vllm_megamoe.testing.process import shared_memory

OURS = "CONTRACT_FLAG"
"""Variable: the value of `--quantization`, empty for vllm-ascend's own path."""
LAYERS, BATCHES, TOKENS = 2, 3, 256
END_LIMIT_S = 60.0


def run(rank: Rank) -> dict[str, Any]:
    """Calls of each process and layer at ready and after the batches; processes and memory that outlive the engine."""
    from vllm import LLM

    os.environ[FOLDER] = str(rank.folder)
    flag = os.environ.get(OURS) or None
    llm = LLM(
        str(engine.Model(changes={"num_hidden_layers": LAYERS}).write(rank.own_folder("model"))),
        skip_tokenizer_init=True,
        load_format="dummy",
        enforce_eager=True,
        max_model_len=TOKENS,
        max_num_batched_tokens=TOKENS,
        max_num_seqs=engine.MAX_NUM_REQS,
        tensor_parallel_size=2,
        enable_expert_parallel=True,
        distributed_executor_backend="mp",
        quantization=flag,
        additional_config={} if flag else {"enable_fused_mc2": 2},
        num_gpu_blocks_override=16,
        kv_cache_memory_bytes=1 << 26,
    )
    ready = _calls(rank.folder)
    for _ in range(BATCHES):
        llm.collective_rpc("execute_dummy_batch")
    after = _calls(rank.folder)
    members = _descendants(os.getpid())
    blocks = {block for member in members for block in shared_memory(member)}
    llm.llm_engine.engine_core.shutdown()
    del llm
    end = monotonic() + END_LIMIT_S
    while (left := [name for member, name in members.items() if _name(member) == name]) and monotonic() < end:
        sleep(0.1)
    return {
        "ready": ready,
        "after": after,
        "processes left": left,
        "blocks left": sorted(str(block) for block in blocks if block.exists()),
        "processes": len(members),
        "asked": dict(Counter(line for lines in _lines(rank.folder, "asked").values() for line in lines)),
    }


def _lines(folder: Path, kind: str) -> dict[str, list[str]]:
    """Process -> the lines that it left."""
    return {path.suffix: path.read_text().splitlines() for path in sorted(folder.glob(f"{kind}.*"))}


def _calls(folder: Path) -> dict[str, dict[str, list[int]]]:
    """Process -> layer, by the place of its first weight; 0 for creation -> rows of its calls."""
    found: dict[str, dict[str, list[int]]] = {}
    for process, lines in _lines(folder, "calls").items():
        for _, layer, rows in (line.split() for line in lines):
            found.setdefault(process, {}).setdefault(layer, []).append(int(rows))
    return found


def _descendants(parent: int) -> dict[int, str]:
    """Id -> name and start of every process below one."""
    parents = {int(path.name): _fields(int(path.name)) for path in Path("/proc").iterdir() if path.name.isdecimal()}
    found: set[int] = set()
    while True:
        more = {pid for pid, fields in parents.items() if fields and int(fields[1]) in found | {parent}} - found
        if not more:
            return {pid: _name(pid) for pid in found}
        found |= more


def _fields(member: int) -> list[str]:
    try:
        return Path(f"/proc/{member}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _name(member: int) -> str:
    """What a process is, empty for one that has ended; a number that another process has taken since is told apart."""
    fields = _fields(member)
    if not fields or fields[0] == "Z":
        return ""
    try:
        return f"{Path(f'/proc/{member}/comm').read_text().strip()} {fields[19]}"
    except OSError:
        return ""
