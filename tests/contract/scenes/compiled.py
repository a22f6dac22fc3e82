"""A layer in torch's compiled mode under vllm-ascend: one graph without breaks, in which our layer is one operation."""

import os
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import torch
from contract.scenes.layer import build
from contract.support import engine
from contract.support.cases import CASES, HIDDEN
from contract.support.values import rows_for
from torch.overrides import _pop_mode_temporarily

if TYPE_CHECKING:
    from contract.support.rank import Rank

TOKENS = (16, 5)
NAMES = ("bf16", "shared")


def run(rank: "Rank") -> dict[str, Any]:
    """Of each case: rows of eager and compiled steps, and the operations of the graphs."""
    cases = {case.name: case for case in CASES[os.environ["VLLM_MEGAMOE_SIMULATED_NPU"]]}
    answers: dict[str, Any] = {}
    for name in NAMES:
        config, block = build(cases[name], rank)
        graphs: list[list[str]] = []

        def backend(module: torch.fx.GraphModule, example_inputs: Any, graphs: list[list[str]] = graphs) -> Any:
            del example_inputs
            graphs.append([str(node.target) for node in module.graph.nodes if node.op == "call_function"])
            return module.forward

        compiled = torch.compile(block, fullgraph=True, dynamic=False, backend=backend)

        def step(x: Any, compiled: Any = compiled) -> Any:
            # The compiler would trace the simulator's own mode; kernels enter it again.
            with _pop_mode_temporarily():
                return compiled(x)

        eager = [engine.forward(config, block, rows_for(name, n, HIDDEN)) for n in TOKENS]
        # Dynamo asks for the accelerator's stream, and there is none behind the simulated one.
        with patch.object(torch.accelerator, "is_available", lambda: False):
            steps = [engine.forward(config, step, rows_for(name, n, HIDDEN)) for n in TOKENS]
        answers[name] = {
            "eager": eager,
            "compiled": steps,
            "graphs": graphs,
            "steps": block.experts.routed_experts.mega_moe.steps,
        }
    return answers
