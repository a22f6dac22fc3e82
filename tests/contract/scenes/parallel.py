"""One layer under data parallelism, alone or with tensor parallelism: steps in which ranks bring unequal rows, or none.

VLLM's runner pads its input to the largest rank's rows and says how many are real; a draft's input stays as it is. Both
are tried, and a rank without requests brings a dummy row, none of which is real (worker/model_runner_v1.py).
"""

import os
import socket
from typing import TYPE_CHECKING, Any

import torch
from contract.support import engine
from contract.support.boundary import Boundary
from contract.support.cases import CASES, EXPERTS, HIDDEN, LIMIT, Case
from contract.support.values import rows_for
from contract.support.weights import checkpoint

if TYPE_CHECKING:
    from contract.support.rank import Rank

DATA_PARALLEL = 2
STEPS = ((5, 3), (1, 16), (4, 4), (6, 0), (0, 1))
"""Real tokens of both data-parallel ranks."""


def rows_of(step: tuple[int, int], dp_rank: int) -> torch.Tensor:
    """The rows of one data-parallel rank in a step."""
    return rows_for(f"parallel {step} {dp_rank}", step[dp_rank], HIDDEN)


def run(rank: "Rank") -> dict[str, Any]:
    """The rows of every step as this rank has them, and the calls."""
    tensor_parallel = rank.size // DATA_PARALLEL
    dp_rank, boundary = rank.number // tensor_parallel, Boundary()
    case = CASES[os.environ["VLLM_MEGAMOE_SIMULATED_NPU"]][0]
    config = _config(case, rank, tensor_parallel, dp_rank)
    engine.start_worker(config, rank.number % tensor_parallel, rank.meeting_point)
    block = engine.build_block(config)
    engine.load(block, checkpoint(case))
    engine.finish_loading(config, block)
    answer: dict[str, Any] = {"rows": {}, "sequence parallel": block.experts.moe_config.is_sequence_parallel}
    for step in STEPS:
        for padded in (True, False):
            answer["rows"][step, padded] = _step(config, block, step, dp_rank, padded=padded)
    return answer | {"events": boundary.events, "experts": EXPERTS}


def _config(case: Case, rank: "Rank", tensor_parallel: int, dp_rank: int) -> Any:
    config = engine.make_config(
        engine.model_of(case).write(rank.own_folder(case.name)),
        quantization="megamoe",
        tokens=LIMIT,
        tensor_parallel_size=tensor_parallel,
        data_parallel_size=DATA_PARALLEL,
        additional_config={"megamoe": case.options},
    )
    parallel = config.parallel_config
    parallel.data_parallel_rank = dp_rank
    parallel.data_parallel_master_ip = "127.0.0.1"
    parallel._data_parallel_master_port_list = [_port(rank)]
    return config


def _port(rank: "Rank") -> int:
    """A free port, chosen by the first rank for all."""
    place = rank.folder / "port"
    if rank.number == 0:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            (rank.folder / "port.new").write_text(str(free.getsockname()[1]))
        (rank.folder / "port.new").rename(place)
    return int(engine.wait_for(place).read_text())


def _step(config: Any, block: Any, step: tuple[int, int], dp_rank: int, *, padded: bool) -> torch.Tensor:
    """Rows of the real tokens of this rank."""
    x, most = rows_of(step, dp_rank), max(step)
    real = len(x)
    given = [max(n, 1) for n in step]  # an idle rank runs one dummy row
    if padded:
        given = [most] * len(step)
    x = torch.nn.functional.pad(x, (0, 0, 0, given[dp_rank] - real))
    out = engine.forward(
        config,
        block,
        x,
        num_tokens_across_dp=torch.tensor(given, dtype=torch.int32),
        num_actual_tokens=real,
    )
    assert len(out) == len(x)
    return out[:real]
