"""Devices are data: every figure has a source, and the user's numbers come first."""

import pytest

from vllm_megamoe.errors import ConfigError
from vllm_megamoe.profiles.devices import DEVICES, device_of, find_device, with_numbers

# Public figures, written down apart from the table: 10^9 bytes a second, and 10^12 operations.
FIGURES = {
    "a2-64": (1600, {"bf16": 376, "int8": 752}, 196),
    "a3": (1600, {"bf16": 376, "int8": 752}, 196),
    "950pr-128": (1600, {"fp8": 1000, "fp4": 2000}, 1000),
    "950dt-144": (4000, {"fp8": 1000, "fp4": 2000}, 1000),
}


@pytest.mark.parametrize("name", FIGURES)
def test_published_figures(name: str) -> None:
    device, (bandwidth, peak, link) = find_device(name), FIGURES[name]
    assert device.memory_bandwidth == bandwidth * 1e9
    assert {element: value / 1e12 for element, value in device.peak.items()} == peak
    assert device.link == link * 1e9


@pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.name)
def test_every_figure_has_a_source_and_no_source_stands_without_one(device: object) -> None:
    figures = {
        "memory": device.memory_gib,  # type: ignore[attr-defined]
        "memory bandwidth": device.memory_bandwidth,  # type: ignore[attr-defined]
        "peak": device.peak,  # type: ignore[attr-defined]
        "link": device.link,  # type: ignore[attr-defined]
    }
    sources = dict(device.sources)  # type: ignore[attr-defined]
    assert set(sources) == {name for name, value in figures.items() if value}
    assert all(len(text) > 20 for text in sources.values())


def test_memory_is_below_what_is_sold() -> None:
    """A runtime reports less than the name says: GB are 10^9 bytes on 950, and A2 and A3 keep about 3 GiB."""
    for device in DEVICES:
        sold = float(device.name.rpartition("-")[2]) if "-" in device.name else 64.0
        assert 0.9 * sold < device.memory_gib < sold


def test_a_product_without_a_name_is_its_first_device() -> None:
    assert device_of("a3") == find_device("a3")
    assert device_of("950") == find_device("950dt-96")
    assert device_of("none") is None


def test_the_users_numbers_come_first() -> None:
    found = with_numbers(
        find_device("950pr-112"), memory_gib=100.0, memory_bandwidth_gb=1400, peak_tflops=500, link_gb=50
    )
    assert (found.memory_gib, found.memory_bandwidth, found.link) == (100.0, 1.4e12, 5e10)
    assert set(found.peak.values()) == {5e14}
    assert set(found.sources.values()) == {"the command line"}


def test_a_misspelt_device_is_named() -> None:
    with pytest.raises(ConfigError, match="did you mean 950dt-144"):
        find_device("950dt144")
