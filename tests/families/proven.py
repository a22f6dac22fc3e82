"""How each family is proven, as plain data: `proven.json`, which the generator of docs/models.md reads.

Each row of the file has
    family          its name in documents,
    architectures   entries of `architectures` in config.json that it stands for,
    proof           `served`: a tiny model of the real class in vLLM's engine, compared with vLLM's own MoE and with
                    transformers; `block`: the layer alone, from a published config, against the family's formula,
    shared_experts  where they ran: `fused` in the operator's call, `vllm` on vLLM's own path; empty for none,
    layouts         how they lay over ranks, see layouts.py,
    runs            `every` for a proof of `make test`, `full` for one of `make test-full`,
    test            the file that proves it.
test_proven.py holds the file equal to what the tests do; `python -m families.proven` in the folder `tests` writes it.
"""

import json
from pathlib import Path
from typing import Any

from families.block_configs import architectures
from families.blocks import BLOCKS
from families.layouts import LAYOUTS, engines
from families.models import FAMILIES, Family

FILE = Path(__file__).with_name("proven.json")


def rows() -> list[dict[str, Any]]:
    """What the tests prove, served families first."""
    return [*(_served(model, family) for model, family in FAMILIES.items()), *_blocks()]


def _served(model: str, family: Family) -> dict[str, Any]:
    return {
        "family": family.title,
        "architectures": [family.architecture],
        "proof": "served",
        "shared_experts": ["fused" if family.fused(mode) else "vllm" for mode in family.modes if family.shared],
        "layouts": [name for name in LAYOUTS if (model, "planned") in engines(name)],
        "runs": "every" if family.every_run else "full",
        "test": "tests/families/test_served.py",
    }


def _blocks() -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for block in BLOCKS.values():
        row = found.setdefault(
            block.family,
            {
                "family": block.family,
                "architectures": architectures(block.family),
                "proof": "block",
                "shared_experts": [],
                "layouts": ["one rank"],
                "runs": "every",
                "test": "tests/families/test_blocks.py",
            },
        )
        place = {"fused"} if block.shared else {"vllm"} if block.has_shared else set()
        row["shared_experts"] = sorted({*row["shared_experts"], *place})
    return list(found.values())


def text() -> str:
    """The file's content."""
    return json.dumps(rows(), indent=2) + "\n"


if __name__ == "__main__":
    FILE.write_text(text())
