"""vllm-ascend's own engine with two workers, from start to ready, three dummy batches, a step, and what its end leaves.

A request's first token needs Triton and attention kernels, so the step goes through the MoE blocks alone.
"""

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
PADDED, REAL = 16, 11
"""Tokens of the step, and how many of them are real."""
METRICS_LIMIT_S = 30.0
END_LIMIT_S = 60.0


def run(rank: Rank) -> dict[str, Any]:
    """Calls of each process and layer at ready and after the batches; processes and memory that outlive the engine."""
    from vllm import LLM

    os.environ[FOLDER] = str(rank.folder)
    os.environ["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"  # functions go to the workers
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
        disable_log_stats=False,
    )
    ready = _calls(rank.folder)
    if flag:
        llm.collective_rpc(watch_dummy_runs)
    for _ in range(BATCHES):
        llm.collective_rpc("execute_dummy_batch")
    after = _calls(rank.folder)
    idle = llm.collective_rpc(counted) if flag else []
    known = llm.collective_rpc(known_as_idle) if flag else []
    llm.collective_rpc(step)
    counts = llm.collective_rpc(counted) if flag else []
    metrics = _metrics(llm, sum(rows for layers in counts for _, rows in layers))
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
        "idle": idle,
        "known as idle": known,
        "counted": counts,
        "metrics": metrics,
        "processes left": left,
        "blocks left": sorted(str(block) for block in blocks if block.exists()),
        "processes": len(members),
        "asked": dict(Counter(line for lines in _lines(rank.folder, "asked").values() for line in lines)),
    }


def _blocks(worker: Any) -> list[Any]:
    modules = worker.model_runner.model.modules()
    return [module for module in modules if type(module).__name__ == "Qwen3MoeSparseMoeBlock"]


def counted(worker: Any) -> list[tuple[int, int]]:
    """In a worker: steps and rows that each layer of this rank has counted."""
    states = [block.experts.routed_experts.mega_moe for block in _blocks(worker)]
    return [(state.steps, int(state.counts.sum())) for state in states]


def watch_dummy_runs(worker: Any) -> None:
    """In a worker: from now on note at each dummy run of its model runner whether our layers know of it."""
    from vllm_megamoe.lanes import warm_up

    run, worker.noted = worker.model_runner._dummy_run, []

    def noting(*given: Any, **named: Any) -> Any:
        worker.noted.append(warm_up.in_idle_batch())
        return run(*given, **named)

    worker.model_runner._dummy_run = noting


def known_as_idle(worker: Any) -> list[bool]:
    """In a worker: what was noted, and what holds between batches."""
    from vllm_megamoe.lanes import warm_up

    return [*worker.noted, warm_up.in_idle_batch()]


def step(worker: Any) -> None:
    """In a worker: a step of its MoE blocks as the model runner makes one, with padding behind the real tokens."""
    import torch
    from vllm_ascend.ascend_forward_context import set_ascend_forward_context

    x = torch.randn(PADDED, engine.Model.hidden, generator=torch.Generator().manual_seed(0)).bfloat16()
    context = set_ascend_forward_context({}, worker.vllm_config, num_tokens=PADDED, num_actual_tokens=REAL)
    with torch.inference_mode(), context:
        for block in _blocks(worker):
            block(x)


def _metrics(llm: Any, rows: int) -> dict[str, Any]:
    """Ours among the engine's metrics, once they tell of so many rows; summed over label values but for `info`'s."""
    end, found = monotonic() + METRICS_LIMIT_S, _ours(llm)
    while found.get("expert_rows", 0) != rows and monotonic() < end:
        sleep(0.2)
        found = _ours(llm)
    return found


def _ours(llm: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for metric in llm.get_metrics():
        name = metric.name.removeprefix("vllm:megamoe_")
        if name == "info":
            found[name] = dict(metric.labels)
        elif name != metric.name:
            found[name] = found.get(name, 0) + metric.value
    return found


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
