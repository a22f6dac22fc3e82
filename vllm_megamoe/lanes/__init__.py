"""All of vLLM and vllm-ascend: its configs, its hook at start-up, the method of a MoE layer, its parallel state.

What every version shares stands in this folder: `startup` (the hook, and the plan made once), `carried` (that plan in
all processes), `quant_config`, `model_layers`, `moe_method`, `layer_facts`, `last_words`. What differs between pairings
of vLLM and a platform stands in a folder for each:

    cpu/       vLLM's own CPU build, 0.30 and 0.32
    ascend/    vllm-ascend 0.30.0rc2 with vLLM 0.30

A new pairing is a folder beside it whose module has the functions of `Lane`, and a row in PAIRINGS.
"""

import importlib.metadata
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from vllm_megamoe.environment import UNTESTED
from vllm_megamoe.errors import ConfigError

if TYPE_CHECKING:
    from vllm_megamoe.checkpoint.recognise import Section, SideFiles
    from vllm_megamoe.experts.canonical import Experts
    from vllm_megamoe.lanes.quant_config import MegaMoeConfig
    from vllm_megamoe.layer.rows import Seat
    from vllm_megamoe.plan.agreement import Communicator
    from vllm_megamoe.plan.layer_plan import LayerPlan
    from vllm_megamoe.plan.options import Options


class Lane(Protocol):
    """What a pairing provides; a module with these names is one.

    Attributes:
        OWN_ROWS: whether the platform hands every rank rows of its own (EngineFacts.own_rows).
        Method: the method of a MoE layer, a MegaMoeMethod.
    """

    OWN_ROWS: bool
    Method: Any

    def settle(self, vllm_config: Any, options: "Options") -> "tuple[Options, list[str]]":
        """The options as they hold on this machine, and sentences about what the platform's config contradicts.

        Called before the plan is made, in the process that the user started.
        """

    def prepare(self, vllm_config: Any) -> None:
        """Ready the environment, in the process that the user started, before the platform looks at the config.

        The plan holds by then; what the platform's own check must not see is taken out of the config here.
        """

    def enter(self) -> None:
        """Ready any process of an engine, once it has the plan; a second call does nothing."""

    def start(self, vllm_config: Any) -> None:
        """Ready a worker, on all ranks alike, before the first layer of a model is built; a second call does nothing.

        Raises:
            ConfigError: the machine is not the one that was planned for.
        """

    def read_seat(self, layer: Any, communicator: "Communicator" = "main") -> "Seat":
        """The communicator of a layer (RoutedExperts), and how its rows come together.

        Args:
            communicator: `draft` for one of its own over the same ranks, made with its first layer: all ranks of it
                build their layers in the same order, so they come here together.

        Raises:
            ConfigError: its experts are placed in another order than the operator takes them in.
        """

    def inner_config(self, section: "Section | None", side_files: "SideFiles") -> Any:
        """The config (vLLM's QuantizationConfig) of all layers without experts, from the checkpoint's config files.

        None where there is none.
        """

    def answering_config(self, inner: Any) -> Any:
        """Who answers what the platform asks the quantisation config beyond vLLM's own questions; None for nobody.

        Args:
            inner: see `inner_config`.
        """

    def layer_method(self, layer: Any, prefix: str, config: "MegaMoeConfig") -> Any:
        """The method of a layer without experts; None leaves the choice to vLLM. Called while the model is built.

        A linear of a shared MLP that is fused must still have its numbers when `take_shared` comes for them.

        Raises:
            MegaMoeError: the layer's weights cannot be read.
        """

    def check_whole(self, vllm_config: Any) -> None:
        """Called before each step of a MoE layer, for the engine's layers without experts.

        Raises:
            CheckpointError: weights were loaded again in part.
        """

    def take_shared(self, runner: Any, plan: "LayerPlan", put: "Callable[[Experts], None]") -> "Callable[[], None]":
        """Give the shared MLP of a runner to `put`: `plan.shared.pieces` experts, whole on every rank, as stored.

        From then on the runner's own path to it is off. When weights are loaded again, `put` is called again.

        Returns:
            What is called before each step: it raises CheckpointError where the MLP was loaded again in part.

        Raises:
            ConfigError: the runner or its MLP is not built as this pairing knows it.
        """


@dataclass(frozen=True, slots=True)
class Pairing:
    """One row.

    Attributes:
        platform: as vLLM names its device type.
        versions: of vLLM, major and minor.
        load: imports the lane.
        plugin: the distribution that brings the platform, empty for vLLM's own.
        releases: of that distribution, in full.
    """

    platform: str
    versions: tuple[str, ...]
    load: Callable[[], Lane]
    plugin: str = ""
    releases: tuple[str, ...] = ()

    def __str__(self) -> str:
        beside = f" with {self.plugin} {' or '.join(self.releases)}" if self.plugin else ""
        return f"vLLM {' or '.join(self.versions)}{beside} on {self.platform}"

    def suits(self, platform: str, version: str, release: str) -> bool:
        """Whether it is the row of these; `release` is the plugin's."""
        short = ".".join(version.split(".")[:2])
        return (platform, release in self.releases) == (self.platform, bool(self.plugin)) and short in self.versions


def _cpu() -> Lane:
    from vllm_megamoe.lanes import cpu

    return cpu


def _ascend() -> Lane:
    from vllm_megamoe.lanes import ascend

    return ascend


PAIRINGS = (
    Pairing("cpu", ("0.30", "0.32"), _cpu),
    Pairing("npu", ("0.30",), _ascend, "vllm-ascend", ("0.30.0rc2",)),
)
"""The pairings that work, in the order in which a refusal lists them."""

TORCH = ("2.10", "2.13")
"""Releases of torch, major and minor, with which the suite ran; between them nothing is known to be in the way."""


def find_lane(platform: str, version: str, release: str = "") -> Lane:
    """The lane of a platform, a version of vLLM, and a release of the platform's own distribution.

    Another release than the tried ones gets the platform's lane where VLLM_MEGAMOE_UNTESTED=on forces it; another
    platform never does, because there the operator would get rows that nobody has split for it.

    Raises:
        ConfigError: none is written for it.
    """
    for pairing in PAIRINGS:
        if pairing.suits(platform, version, release):
            return pairing.load()
    same = [pairing for pairing in PAIRINGS if pairing.platform == platform]
    if same and UNTESTED.read() == "on":
        return same[-1].load()
    force = f" {UNTESTED.name}=on serves with it all the same, untested." if same else ""
    raise ConfigError(
        f"platform: {_told(platform, version, release)}; expected {working()}. Install it, or drop --quantization "
        f"megamoe: elsewhere the operator would get rows that nobody has split for it.{force}"
    )


def _told(platform: str, version: str, release: str) -> str:
    plugin = plugin_of(platform)
    beside = f" with {plugin} {release or 'of no known release'}" if plugin else ""
    return f"vLLM {version}{beside} on {platform}"


def untested(platform: str, version: str, release: str, torch_version: str) -> list[str]:
    """A line about each release beside this package that nobody has tried; empty where all are known."""
    found = []
    if not any(pairing.suits(platform, version, release) for pairing in PAIRINGS):
        found.append(
            f"UNTESTED: {_told(platform, version, release)}, forced by {UNTESTED.name}=on; this package is tested with "
            f"{working()}. Wrong text is possible: compare with an engine that has no --quantization megamoe."
        )
    numbers = tuple(map(int, torch_version.split("+")[0].split(".")[:2]))
    least, most = (tuple(map(int, each.split("."))) for each in TORCH)
    if not least <= numbers <= most:
        found.append(f"UNTESTED: torch {torch_version}; this package is tested with torch {TORCH[0]} to {TORCH[1]}.")
    return found


def plugin_of(platform: str) -> str:
    """The distribution that brings a platform to vLLM, empty for vLLM's own and for unknown ones."""
    return next((pairing.plugin for pairing in PAIRINGS if pairing.platform == platform), "")


def working() -> str:
    """The pairings that work, for a message."""
    return "; ".join(map(str, PAIRINGS))


def running_lane() -> Lane:
    """The lane of the vLLM that runs in this process.

    Raises:
        ConfigError: none is written for it.
    """
    import vllm
    from vllm.platforms import current_platform

    platform: str = current_platform.device_type
    return find_lane(platform, vllm.__version__, _release(plugin_of(platform)))


def untested_here() -> list[str]:
    """`untested` of what is installed here."""
    import torch
    import vllm
    from vllm.platforms import current_platform

    platform: str = current_platform.device_type
    return untested(platform, vllm.__version__, _release(plugin_of(platform)), torch.__version__)


def _release(plugin: str) -> str:
    """The installed release of a distribution, empty where it has no metadata."""
    try:
        return importlib.metadata.version(plugin) if plugin else ""
    except importlib.metadata.PackageNotFoundError:
        return ""
