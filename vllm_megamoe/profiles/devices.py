"""Devices as numbers with their sources: memory, its bandwidth, peak multiply-adds, and the link to other devices.

A figure that no public source gives is None; whoever needs it asks the user for one. Figures of vendors are peaks: what
follows from them is a bound, never an estimate.
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from vllm_megamoe.errors import ConfigError
from vllm_megamoe.profiles.profile import Product

Element = Literal["bf16", "int8", "fp8", "fp4"]
"""What a matrix multiplication multiplies."""

GIB, GB, TERA = 1 << 30, 10**9, 10**12

CLOUDMATRIX = "CloudMatrix384 (arXiv 2506.12708), table of the 910C: per die"
CONNECT = "Huawei Connect, 2025-09-18, keynote on the Ascend roadmap"
SIMULATOR = "device table of a public simulator of attention and FFN on Ascend (hardware_config.py, 910B2)"
TUTORIALS = "vllm-ascend 0.30.0rc2, docs/source/tutorials/models"
OF_64 = "60.97 GiB total capacity in torch_npu's own messages (vllm-ascend #19, #1987, #5020)"


@dataclass(frozen=True, slots=True)
class Device:
    """One device: a card of A2, a die of A3, a chip of 950.

    Attributes:
        name: for people and for `--device`.
        product: whose operator runs on it, None for one that only the user knows.
        memory_gib: memory that the runtime reports, of which `--gpu-memory-utilization` is a share.
        memory_bandwidth: bytes a second, None where no source gives it.
        peak: multiply-adds times two a second, by element type; absent where no source gives it.
        link: bytes a second in one direction to the other devices of a node or super-node.
        per_node: devices of a node.
        sources: of these figures, by field.
    """

    name: str
    product: Product
    memory_gib: float
    memory_bandwidth: float | None = None
    peak: Mapping[Element, float] = field(default_factory=dict, hash=False)
    link: float | None = None
    per_node: int = 8
    sources: Mapping[str, str] = field(default_factory=dict, hash=False)


_A2_SOURCES = {
    "memory": OF_64,
    "memory bandwidth": f"{SIMULATOR}: 1.6 TB/s",
    "peak": f"{SIMULATOR}: 376 TFLOPS in FP16, twice that in INT8; slower models of A2 have 313 and 280",
    "link": f"{SIMULATOR}: 196 GB/s within a node, one direction",
}
_A3_SOURCES = {
    "memory": f"{CLOUDMATRIX}, 64 GB; {OF_64}",
    "memory bandwidth": f"{CLOUDMATRIX}, 1.6 TB/s",
    "peak": f"{CLOUDMATRIX}, 376 TFLOPS in BF16, 752 TOPS in INT8",
    "link": f"{CLOUDMATRIX}, 196 GB/s on the UB plane, one direction",
}
_950_PEAK: dict[Element, float] = {"fp8": 1000 * TERA, "fp4": 2000 * TERA}
_950_SOURCES = {
    "peak": f"{CONNECT}: 1 PFLOPS in FP8, 2 PFLOPS in FP4; none is given for BF16 and INT8",
    "link": f"{CONNECT}: 2 TB/s, read as both directions together",
}


def _ascend950(name: str, memory: float, bandwidth: float | None, where: str) -> Device:
    sources = {"memory": where, **_950_SOURCES}
    if bandwidth is not None:
        sources["memory bandwidth"] = CONNECT
    return Device(name, "950", memory, bandwidth, _950_PEAK, 1000 * GB, 8, sources)


DEVICES: tuple[Device, ...] = (
    Device("a2-64", "a2", 60.97, 1600 * GB, {"bf16": 376 * TERA, "int8": 752 * TERA}, 196 * GB, 8, _A2_SOURCES),
    Device(
        "a2-32",
        "a2",
        29.5,
        800 * GB,
        {"bf16": 280 * TERA, "int8": 560 * TERA},
        None,
        8,
        {
            "memory": "32 GB card (910B4), less the same share as the 64 GB one reports",
            "memory bandwidth": f"{SIMULATOR}: 0.8 TB/s of the 910B4",
            "peak": "280 TFLOPS in FP16 (910B4), twice that in INT8",
        },
    ),
    Device("a3", "a3", 60.97, 1600 * GB, {"bf16": 376 * TERA, "int8": 752 * TERA}, 196 * GB, 16, _A3_SOURCES),
    _ascend950("950dt-96", 89.4, 4000 * GB, f"{TUTORIALS}: 950DT, 8 x 96 GB (10^9 bytes)"),
    _ascend950("950pr-112", 104.3, None, "reported cards of 112 GB (10^9 bytes); their bandwidth has no source here"),
    _ascend950("950pr-128", 119.2, 1600 * GB, f"{CONNECT}: 950PR, 128 GB (10^9 bytes)"),
    _ascend950("950dt-144", 134.1, 4000 * GB, f"{CONNECT}: 950DT, 144 GB (10^9 bytes)"),
)
"""The first of a product is the one that is taken where the user names none."""

DEVICE_NAMES = tuple(device.name for device in DEVICES)


def find_device(name: str) -> Device:
    """The device of that name.

    Raises:
        ConfigError: no such device.
    """
    for device in DEVICES:
        if device.name == name.lower():
            return device
    near = difflib.get_close_matches(name.lower(), DEVICE_NAMES, n=1)
    meant = f"; did you mean {near[0]}?" if near else "."
    raise ConfigError(f"--device {name!r} is not known{meant} Devices: {', '.join(DEVICE_NAMES)}.")


def device_of(product: Product) -> Device | None:
    """The device that is taken for a product; None for `none`, the twin, whose host has whatever memory it has."""
    return next((device for device in DEVICES if device.product == product), None)


def with_numbers(
    device: Device,
    *,
    memory_gib: float | None = None,
    memory_bandwidth_gb: float | None = None,
    peak_tflops: float | None = None,
    link_gb: float | None = None,
) -> Device:
    """The device with the user's numbers in place of its own; a peak holds for every element type."""
    given: dict[str, str] = {}
    if memory_gib is not None:
        device, given["memory"] = replace(device, memory_gib=memory_gib), "the command line"
    if memory_bandwidth_gb is not None:
        device = replace(device, memory_bandwidth=memory_bandwidth_gb * GB)
        given["memory bandwidth"] = "the command line"
    if peak_tflops is not None:
        every: dict[Element, float] = dict.fromkeys(("bf16", "int8", "fp8", "fp4"), peak_tflops * TERA)
        device, given["peak"] = replace(device, peak=every), "the command line"
    if link_gb is not None:
        device, given["link"] = replace(device, link=link_gb * GB), "the command line"
    return replace(device, sources={**device.sources, **given})
