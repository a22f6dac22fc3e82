"""All of vLLM and vllm-ascend: its configs, its hook at start-up, the method of a MoE layer, its parallel state.

What every version shares stands in this folder: `startup` (the hook, and the plan made once), `carried` (that plan in
all processes), `quant_config`, `model_layers`, `moe_method`, `layer_facts`, `last_words`. What differs between pairings
of vLLM and a platform stands in a folder for each:

    cpu/    vLLM's own CPU build, 0.30 and 0.32

A new pairing is a folder beside it whose module has the functions of `Lane`, and a row in PAIRINGS.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from vllm_megamoe.errors import ConfigError

if TYPE_CHECKING:
    from vllm_megamoe.checkpoint.recognise import Section, SideFiles
    from vllm_megamoe.experts.canonical import Experts
    from vllm_megamoe.lanes.quant_config import MegaMoeConfig
    from vllm_megamoe.layer.rows import Seat
    from vllm_megamoe.plan.layer_plan import LayerPlan


class Lane(Protocol):
    """What a pairing provides; a module with these functions is one."""

    def prepare(self, vllm_config: Any) -> None:
        """Ready the environment, in the process that the user started, before the platform looks at the config.

        The plan holds by then; what the platform's own check must not see is taken out of the config here.
        """

    def read_seat(self, layer: Any) -> "Seat":
        """The communicator of a layer (RoutedExperts), and how its rows come together.

        Raises:
            ConfigError: its experts are placed in another order than the operator takes them in.
        """

    def inner_config(self, section: "Section | None", side_files: "SideFiles") -> Any:
        """The config (vLLM's QuantizationConfig) of all layers without experts, from the checkpoint's config files.

        None where there is none.
        """

    def layer_method(self, layer: Any, prefix: str, config: "MegaMoeConfig") -> Any:
        """The method of a layer without experts; None leaves the choice to vLLM. Called while the model is built.

        A linear of a shared MLP that is fused must still have its numbers when `take_shared` comes for them.

        Raises:
            MegaMoeError: the layer's weights cannot be read.
        """

    def take_shared(self, runner: Any, plan: "LayerPlan") -> "Experts":
        """The shared MLP of a runner as `plan.shared.pieces` experts, whole on every rank, as the checkpoint has it.

        From then on the runner's own path to it is off.

        Raises:
            ConfigError: the runner or its MLP is not built as this pairing knows it.
        """


@dataclass(frozen=True, slots=True)
class Pairing:
    """One row: a platform as vLLM names its device type, the versions of vLLM (major and minor), and the lane."""

    platform: str
    versions: tuple[str, ...]
    load: Callable[[], Lane]

    def __str__(self) -> str:
        return f"vLLM {' or '.join(self.versions)} on {self.platform}"


def _cpu() -> Lane:
    from vllm_megamoe.lanes import cpu

    return cpu


PAIRINGS = (Pairing("cpu", ("0.30", "0.32"), _cpu),)
"""The pairings that work, in the order in which a refusal lists them."""


def find_lane(platform: str, version: str) -> Lane:
    """The lane of a platform and a version of vLLM.

    Raises:
        ConfigError: none is written for it.
    """
    short = ".".join(version.split(".")[:2])
    for pairing in PAIRINGS:
        if pairing.platform == platform and short in pairing.versions:
            return pairing.load()
    raise ConfigError(
        f"platform: vLLM {version} on {platform}; expected {working()}. Install it, or drop --quantization megamoe: "
        "elsewhere the operator would get rows that nobody has split for it."
    )


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

    return find_lane(current_platform.device_type, vllm.__version__)
