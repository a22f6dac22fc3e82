"""The documents' examples as scripts: their source is read from the document, and only named lines are changed."""

import os
import re
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from ops.recording import FOLDER_VARIABLE

Change = tuple[str, str]

A2_A3_DEVICE_LINES: list[Change] = [
    ("import torch_npu\n", ""),
    (
        "from cann_ops_transformer.ops import get_symm_buffer_for_mega_moe, mega_moe\n",
        "from ops.recording import AclFormat, format_cast, get_symm_buffer_for_mega_moe, mega_moe\n",
    ),
    ("torch_npu.npu.config.allow_internal_format = True\n", ""),
    ("    options = torch_npu._C._distributed_c10d.ProcessGroupHCCL.Options()\n", ""),
    ("    options.hccl_config = {'hccl_buffer_size': 200}\n", ""),
    ("        pg_options=options,\n", ""),
    ("    _ = ep_group._get_backend(torch.device('npu')).get_hccl_comm_name(rank)\n", ""),
    ("backend='hccl'", "backend='gloo'"),
    ("torch_npu.npu.set_device(rank % num_ranks_per_server)\n", "torch.set_num_threads(1), torch.manual_seed(rank)\n"),
    ("device='npu'", "device='cpu'"),
    ("torch_npu.npu_format_cast(w, torch_npu.Format.FRACTAL_NZ)", "format_cast(w, AclFormat.FRACTAL_NZ)"),
]
A5_DEVICE_LINES: list[Change] = [
    ("import torch_npu\n", ""),
    ("import torchair\n", "torch.manual_seed(0)\n"),
    (
        "from cann_ops_transformer.ops import get_symm_buffer_for_mega_moe, mega_moe\n",
        "from ops.recording import get_symm_buffer_for_mega_moe, mega_moe\n",
    ),
    ("    torch_npu.npu.set_device(rank % rank_per_dev)\n", "    torch.set_num_threads(1)\n"),
    ('    print(f"current device set: {torch_npu.npu.current_device()}")\n', ""),
    ('backend="hccl"', 'backend="gloo"'),
    ('    ep_hcomm_info = ep_group._get_backend(torch.device("npu")).get_hccl_comm_name(rank)\n', ""),
    ("    return ep_hcomm_info, ep_group\n", "    return None, ep_group\n"),
    (".npu()", ""),
    ("    torch.npu.synchronize()\n", ""),
]


def sources(document: str) -> tuple[str, str]:
    """The 950 example and the A2/A3 one: from their first import to their last line."""
    _, part = document.split("Single-operator mode call:", 1)
    fifth, second = part.split("Atlas A2 training products/Atlas A2 inference products, Atlas A3", 1)
    start = [re.search(r"^import ", text, re.MULTILINE) for text in (fifth, second)]
    assert all(start)
    first_lines = [match.start() for match in start if match]
    return fifth[first_lines[0] :], second[first_lines[1] :]


def changed(source: str, changes: Sequence[Change]) -> str:
    """The source with each text replaced, which must occur."""
    for old, new in changes:
        assert old in source, f"the example has no {old!r}"
        source = source.replace(old, new)
    assert not re.search(r"torch_npu|torch\.npu|torchair|cann_ops", source), "a device line is left"
    return source


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def run_function(source: str, name: str, port: int, rank: int, folder: Path) -> None:
    """One rank of an example: its own function `name`, from the text of its module."""
    os.environ[FOLDER_VARIABLE] = str(folder)
    module: dict[str, Any] = {"__name__": "example"}
    exec(compile(source.replace("50001", str(port)), "example", "exec"), module)
    module[name](rank)


def read_records(folder: Path) -> list[dict[str, Any]]:
    """What each of two ranks passed and got."""
    return [torch.load(folder / f"rank{rank}.pt", weights_only=False) for rank in range(2)]


def run_script(source: str, folder: Path) -> list[dict[str, Any]]:
    """Run an example in its own process; what each of its ranks passed and got."""
    script = folder / "example.py"
    script.write_text(source.replace("50001", str(free_port())), encoding="utf-8")
    tests = Path(__file__).parents[1]
    path = os.pathsep.join([str(tests), str(tests.parent), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path, FOLDER_VARIABLE: str(folder), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(script)], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return read_records(folder)
