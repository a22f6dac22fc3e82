"""Offline engines (`vllm.LLM`), one after the other, in rank processes that have imported vLLM once.

An engine of a tiny model costs a second in a process that is there, and ten more in a new one: importing vLLM is most
of a start. So `EngineRanks` keeps its processes, and builds and ends one engine per case:

    ranks = EngineRanks(2, folder)
    tokens, = ranks.serve({"model": checkpoint, **TENSOR_PARALLEL}, [partial(my_step, prompts=prompts)])[0]
    ranks.stop()

A step is a picklable function of the engine, called on every rank; what it returns comes back by rank. More than one
rank: vLLM's executor `external_launcher`, in which every rank is one of our processes and runs the same steps.
Their scheduler runs in the same process too, so a step reaches the model by `model_of`.
"""

import gc
import json
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from vllm_megamoe.testing.process import HarnessError, OwnProcess, end_of, free_port
from vllm_megamoe.testing.ranks import READY, Failure, Ranks, answer_cases
from vllm_megamoe.testing.server import compiler_environment

ENGINE_LIMIT_S = 600.0
"""For one case: an engine that compiles its model takes a minute on two quiet cores."""

TENSOR_PARALLEL = {
    "tensor_parallel_size": 2,
    "enable_expert_parallel": True,
    "distributed_executor_backend": "external_launcher",
}
"""Arguments of vllm.LLM for two ranks that hold half of the experts each."""

Step = Callable[[Any], Any]
"""Takes the vllm.LLM and returns something that can be pickled."""


def engine_environment() -> dict[str, str]:
    """Return the environment of an engine under test: the caller's without its vLLM settings, and what a CPU wants.

    Of vLLM's settings the choice of plugins stays: where vllm-ascend is installed, `megamoe` alone leaves the CPU.

    One thread per process, because the models are tiny and ranks share the cores; 1 GiB of KV cache, the least that
    vLLM's variable can say.
    """
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith("VLLM_") or name == "VLLM_PLUGINS"
    }
    return (
        clean
        | compiler_environment()
        | {
            "OMP_NUM_THREADS": "1",
            "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",  # functions in collective_rpc
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        }
    )


class EngineRanks(Ranks):
    """Processes that each hold one rank of an engine; sessions of their own, logs in `folder`.

    After a case that failed on any rank the processes are ended, because an engine that broke leaves its mark; the next
    case starts new ones.

    Args:
        size: how many ranks.
        folder: for logs and for vLLM's own cache; it must exist.
        environment: more variables for the ranks.
    """

    def __init__(self, size: int, folder: Path, environment: Mapping[str, str] | None = None) -> None:
        super().__init__(size)
        self._folder = folder
        self._environment = dict(environment or {})
        self._processes: list[OwnProcess] = []

    def serve(
        self, arguments: dict[str, Any], steps: Sequence[Step], limit_s: float = ENGINE_LIMIT_S
    ) -> list[list[Any]]:
        """Build an engine on all ranks, run the steps and end it; return the steps' results by rank.

        Args:
            arguments: of vllm.LLM.
            steps: run in order, on every rank.
            limit_s: seconds for all of it.

        Raises:
            RankError: a rank failed or gave no answer, with its traceback and the end of its log.
        """
        return self.run(serve, [(arguments, list(steps))] * self.size, limit_s)

    def serve_data_parallel(
        self, arguments: dict[str, Any], steps_by_rank: Sequence[Sequence[Step]], limit_s: float = ENGINE_LIMIT_S
    ) -> list[list[Any]]:
        """Serve one replica per rank with engine cores in processes of their own, as `vllm serve` has them.

        Each rank runs steps of its own. An idle one takes part in the others' steps until all are done, which is why
        engines are opened, used and closed in three cases. vLLM reads its variables once in a process, so these ranks
        must not have served otherwise before.
        """
        port = free_port()
        replicas = [(arguments, (rank, self.size, port)) for rank in range(self.size)]
        try:
            self.run(_open, replicas, limit_s)
            found = self.run(_use, [(list(steps),) for steps in steps_by_rank], limit_s)
            self.run(_close, [()] * self.size, limit_s)
            return found
        finally:
            self.stop()

    def outcomes(
        self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], limit_s: float = ENGINE_LIMIT_S
    ) -> list[Any]:
        """As Ranks.outcomes, with a free port for the case: a case builds one engine at most."""
        port = free_port()
        try:
            answers = super().outcomes(_meet, [(port, function, mine) for mine in arguments], limit_s)
        finally:
            # vLLM's shared memory of a group of CPU ranks stays until the process ends, and a killed one leaves it.
            for block in Path("/dev/shm").glob(f"{port}-*"):
                block.unlink(missing_ok=True)
        if any(isinstance(answer, Failure) for answer in answers):
            self.stop(0)
        return answers

    def _start(self) -> list[Connection]:
        pipes = []
        for rank in range(self.size):
            ours, theirs = multiprocessing.Pipe()
            code = f"from vllm_megamoe.testing.engines import live; live({rank}, {theirs.fileno()})"
            log = self._folder / f"rank{rank}of{self.size}.log"
            self._processes.append(
                OwnProcess([sys.executable, "-P", "-c", code], log, self._variables(rank), pass_fds=[theirs.fileno()])
            )
            theirs.close()
            pipes.append(ours)
        return pipes

    def _variables(self, rank: int) -> dict[str, str]:
        ours = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CACHE_ROOT": str(self._folder / "vllm")}
        if self.size > 1:  # as torchrun sets them, for the executor `external_launcher`
            ours |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(self.size)}
            ours |= {"MASTER_ADDR": "127.0.0.1"}
        return engine_environment() | ours | self._environment

    def _end(self, patience_s: float) -> None:
        for process in self._processes:
            process.stop(patience_s)
        self._processes = []

    def _story(self) -> str:
        return "".join(f"\n{process.log.name} ends with\n{end_of(process.log)}" for process in self._processes)


def serve(arguments: dict[str, Any], steps: Sequence[Step]) -> list[Any]:
    """Run steps on an engine that is built for them, in this process."""
    with engine(arguments) as llm:
        return [step(llm) for step in steps]


@contextmanager
def engine(arguments: dict[str, Any]) -> Iterator[Any]:
    """Give a vllm.LLM of these arguments and end it; without a tokenizer, so prompts are token ids."""
    from vllm import LLM
    from vllm.distributed import cleanup_dist_env_and_memory

    _load_class(Path(arguments["model"]))
    llm = LLM(**({"skip_tokenizer_init": True, "max_model_len": 256, "seed": 0} | arguments))
    try:
        yield llm
    finally:
        llm.llm_engine.engine_core.shutdown()
        del llm
        cleanup_dist_env_and_memory()


def tiny_engine(model: str, prompts: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Arguments of vllm.LLM for `all_logprobs` of a small model in float32.

    vLLM's rotary kernel for CPUs misreads the strided rows of latent attention, so that a row's values depend on its
    neighbours; its own PyTorch form of the same operation agrees with transformers.
    """
    longest = max(map(len, prompts)) + 2
    return {
        "model": model,
        "dtype": "float32",
        "enforce_eager": True,
        "enable_prefix_caching": False,
        "max_model_len": longest,
        "max_num_batched_tokens": max(longest, 64),
        "max_logprobs": -1,
        "compilation_config": {"custom_ops": ["all", "-rotary_embedding"]},
    }


TokenRows = list[tuple[float, bool]]  # of a prompt's tokens but the first: log-probability, and whether the likeliest


def of_prompts(llm: Any, prompts: Sequence[str]) -> tuple[list[TokenRows], str]:
    """A step: what an engine finds of each prompt's own tokens, and the use cases of its layers."""
    from vllm import SamplingParams

    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=1)
    rows = []
    for output in llm.generate(list(prompts), params, use_tqdm=False):
        told = list(zip(output.prompt_token_ids, output.prompt_logprobs, strict=True))[1:]
        rows.append([(row[token].logprob, row[token].rank == 1) for token, row in told])
    layers = (getattr(module, "mega_moe", None) for module in model_of(llm).modules())
    return rows, ", ".join(dict.fromkeys(layer.plan.use_case.value for layer in layers if layer is not None))


def all_logprobs(llm: Any, prompts: list[list[int]]) -> list[Any]:
    """Step: float32 [tokens - 1, vocabulary] for each prompt, after each of its tokens but the last."""
    import torch
    from vllm import SamplingParams

    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=-1, detokenize=False)
    outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)
    rows = [output.prompt_logprobs[1:] for output in outputs]
    return [torch.tensor([[row[token].logprob for token in range(len(row))] for row in each]) for each in rows]


def model_of(llm: Any) -> Any:
    """Return this rank's model, a torch.nn.Module."""
    return llm.llm_engine.model_executor.driver_worker.worker.get_model()


def live(rank: int, pipe_fd: int) -> None:
    """A rank's life: import vLLM, then answer cases until the pipe closes."""
    import vllm.entrypoints.llm  # noqa: F401
    from vllm.v1.executor.uniproc_executor import ExecutorWithExternalLauncher as Executor

    Executor._distributed_args = _distributed_args
    # vLLM collects garbage some ten times per engine, most of the time among what its import made, and freezes and
    # unfreezes all there is. Here the imports stay frozen, and engines never are, so that they are collected.
    gc.collect()
    gc.freeze()
    for name in ("freeze", "unfreeze"):
        setattr(gc, name, lambda: None)
    pipe = Connection(pipe_fd)
    pipe.send_bytes(READY)
    answer_cases(rank, pipe)
    os._exit(0)  # an engine may be broken on purpose, and its destructors could wait for a peer


def _meet(port: int, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Run a case whose ranks meet at a store of their own: an old one still names closed connections."""
    os.environ["MASTER_PORT"] = str(port)
    return function(*arguments)


def _distributed_args(executor: Any) -> tuple[str, int, int]:
    """Where the ranks of `external_launcher` meet, rank and local rank: vLLM's own, with the port spelled out.

    vLLM names the shared memory of CPU ranks after the text behind the last colon; from its `env://` two engines on one
    machine get the same name, and the second one fails.
    """
    return f"tcp://127.0.0.1:{os.environ['MASTER_PORT']}", int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])


_opened = ExitStack()
_llm: Any = None


def _open(arguments: dict[str, Any], replica: tuple[int, int, int]) -> None:
    global _llm
    rank, size, port = (str(number) for number in replica)
    os.environ |= {"VLLM_DP_RANK": rank, "VLLM_DP_RANK_LOCAL": rank, "VLLM_DP_SIZE": size}
    os.environ |= {"VLLM_DP_MASTER_IP": "127.0.0.1", "VLLM_DP_MASTER_PORT": port}
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1"
    _llm = _opened.enter_context(engine(arguments))


def _use(steps: Sequence[Step]) -> list[Any]:
    return [step(_llm) for step in steps]


def _close() -> None:
    _opened.close()


def _load_class(model: Path) -> None:
    """Load the model's class here: vLLM would do so in a process of its own to look at it, which costs seconds."""
    from vllm import ModelRegistry

    name = json.loads((model / "config.json").read_text(encoding="utf-8"))["architectures"][0]
    registered = ModelRegistry.models.get(name)
    if registered is None:
        raise HarnessError(f"{model}: vLLM knows no architecture {name!r}; register it in the step before, or fix it")
    ModelRegistry.register_model(name, registered.load_model_cls())
