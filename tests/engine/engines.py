"""Run jobs in engine processes, each job once per test session."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DRIVER = Path(__file__).with_name("driver.py")
TIMEOUT_S = 600

MEGAMOE = {"quantization": "megamoe"}
EAGER = {"enforce_eager": True}
TP2 = {"tensor_parallel_size": 2, "enable_expert_parallel": True}


@dataclass
class Engines:
    """Starts engines and remembers what came out, so that tests share them."""

    folder: Path
    done: dict[str, list[Any]] = field(default_factory=dict)

    def run(self, llm: dict[str, Any], steps: list[dict[str, Any]]) -> list[Any]:
        """Results of the steps, in order, from one engine, whose scheduler runs in the driver's own process.

        That saves the start of a process, which costs more here than all else; test_serve has every process.
        """
        return self._once(llm, [steps], {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"})[0]

    def float32_baseline(self, checkpoint: str, prompts: list[list[int]]) -> list[Any]:
        """vLLM's own MoE in float32 on one rank: all prompts in one batch, then one by one."""
        return self.run({"model": checkpoint, "dtype": "float32", **EAGER}, greedy_steps(prompts))

    def run_data_parallel(self, llm: dict[str, Any], steps_by_rank: list[list[dict[str, Any]]]) -> list[list[Any]]:
        """Results by rank; each rank runs steps of its own and they share the experts."""
        port = str(free_port())
        return self._once(llm, steps_by_rank, {"VLLM_DP_MASTER_IP": "127.0.0.1", "VLLM_DP_MASTER_PORT": port})

    def _once(self, llm: dict[str, Any], steps_by_rank: list[Any], env: dict[str, str]) -> list[list[Any]]:
        key = json.dumps([llm, steps_by_rank], sort_keys=True)
        if key not in self.done:
            self.done[key] = self._start(llm, steps_by_rank, env)
        return self.done[key]

    def _start(self, llm: dict[str, Any], steps_by_rank: list[Any], env: dict[str, str]) -> list[list[Any]]:
        here = Path(tempfile.mkdtemp(dir=self.folder))
        ranks = len(steps_by_rank)
        processes = []
        for rank, steps in enumerate(steps_by_rank):
            job = {"llm": llm, "steps": steps, "results": [str(here / f"result{r}.json") for r in range(ranks)]}
            (here / f"job{rank}.json").write_text(json.dumps(job))
            own = engine_environment() | env
            if ranks > 1:
                own |= {"VLLM_DP_RANK": str(rank), "VLLM_DP_RANK_LOCAL": str(rank), "VLLM_DP_SIZE": str(ranks)}
            log = (here / f"log{rank}.txt").open("w")
            command = [sys.executable, str(DRIVER), str(here / f"job{rank}.json"), str(here / f"result{rank}.json")]
            processes.append(
                subprocess.Popen(command, env=own, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
            )
        try:
            codes = [process.wait(timeout=TIMEOUT_S) for process in processes]
        finally:
            for process in processes:
                stop_group(process)
        if any(codes):
            tails = [(here / f"log{r}.txt").read_text()[-6000:] for r in range(ranks)]
            raise RuntimeError(f"engine processes ended with {codes}; their logs end with\n" + "\n=====\n".join(tails))
        return [json.loads((here / f"result{r}.json").read_text()) for r in range(ranks)]


def greedy_steps(prompts: list[list[int]]) -> list[dict[str, Any]]:
    """Eight tokens after each prompt in one batch, then after each of them alone."""
    step = {"do": "greedy", "prompts": prompts, "max_tokens": 8}
    return [step, {**step, "one_by_one": True}]


def engine_environment() -> dict[str, str]:
    """The environment of an engine under test: nothing of the caller's vLLM settings, functions allowed in RPC."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("VLLM_")}
    return clean | {"VLLM_ALLOW_INSECURE_SERIALIZATION": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def stop_group(process: "subprocess.Popen[Any]") -> None:
    """End a process and all that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
