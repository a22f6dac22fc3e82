"""Ways to break the MoE layers of a running engine on purpose, for negative controls.

Each takes a layer's runner and returns what fixes it. Shared experts are broken where they run: in vLLM's own module,
or in the operator's call when the plan fused them.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from vllm_megamoe.layer.state import constant_arguments
from vllm_megamoe.layout.formatted import inner
from vllm_megamoe.ops.api import bind

Fix = Callable[[], None]


def apply(model: torch.nn.Module, kind: str) -> Fix:
    """Break every MoE layer of a model and return what fixes it again; `none` breaks nothing."""
    from vllm.model_executor.layers.fused_moe.runner.moe_runner import MoERunner

    fixes = [KINDS[kind](runner) for runner in model.modules() if isinstance(runner, MoERunner)]
    if not fixes:
        raise RuntimeError("the model has no MoE layer to break")

    def fix() -> None:
        for one in fixes:
            one()

    return fix


def none(runner: Any) -> Fix:
    return lambda: None


def scaled(runner: Any) -> Fix:
    """Routed rows times 0.9."""
    return wrap(runner.routed_experts.quant_method, "apply", lambda rows: 0.9 * rows)


def shared_dropped(runner: Any) -> Fix:
    """B50: the shared experts never."""
    return _shared_times(runner, 0)


def shared_twice(runner: Any) -> Fix:
    """B50: the shared experts twice."""
    return _shared_times(runner, 2)


def _shared_times(runner: Any, times: int) -> Fix:
    if runner.shared_experts is not None:
        return wrap(runner.shared_experts._layer, "forward", lambda rows: times * rows)
    state, method = runner.routed_experts.mega_moe, runner.routed_experts.quant_method
    if state.shared is None:
        raise RuntimeError(f"{runner.layer_name}: no shared experts to break")
    whole = method.apply

    operator = state._operator
    routed_alone = bind(state.buffer, **constant_arguments(state.plan, state.operands, None))

    def broken(**arguments: Any) -> Tensor:
        with_shared = whole(**arguments)
        state._operator = routed_alone
        without = whole(**arguments)
        state._operator = operator
        return without + times * (with_shared - without)

    return replace(method, "apply", broken)


def gate_dropped(runner: Any) -> Fix:
    """Qwen2-MoE without the gate of its shared expert."""
    return replace(runner.shared_experts._layer, "expert_gate", None)


def factor_dropped(runner: Any) -> Fix:
    """B45: no routed scaling factor, wherever it is: on the output, in the router, or in the plan for fused experts."""
    state = runner.routed_experts.mega_moe
    if state.plan.fold_scaling != 1.0:
        return replace(state, "plan", dataclasses.replace(state.plan, fold_scaling=1.0))
    holder = runner if runner.routed_scaling_factor != 1.0 else runner.router
    if holder.routed_scaling_factor == 1.0:
        raise RuntimeError(f"{runner.layer_name}: no routed scaling factor to drop")
    return replace(holder, "routed_scaling_factor", 1.0)


def factor_twice(runner: Any) -> Fix:
    """B45: the routed scaling factor is in the router weights, and the runner multiplies the output once more."""
    factor = runner.routed_experts.mega_moe.plan.facts.routed_scaling_factor
    return wrap(runner.routed_experts.quant_method, "apply", lambda rows: factor * rows)


def swapped(runner: Any) -> Fix:
    """The first two local experts change places."""
    operands = runner.routed_experts.mega_moe.operands

    def swap() -> None:
        for column in (operands.l1, operands.l2):
            one, other = inner(column[0]), inner(column[1])
            kept = one.clone()
            one.copy_(other)
            other.copy_(kept)

    swap()
    return swap


def reduced_twice(runner: Any) -> Fix:
    """B48: the runner sums finished rows over the ranks."""
    return wrap(runner.routed_experts.quant_method.moe_kernel, "output_is_reduced", lambda whole: not whole)


def shared_not_reduced(runner: Any) -> Fix:
    """B50: each rank keeps its own part of the shared experts."""
    return replace(runner, "_maybe_reduce_shared_expert_output", lambda shared, *_: shared)


KINDS: dict[str, Callable[[Any], Fix]] = {
    function.__name__.replace("_", " "): function
    for function in (
        none,
        scaled,
        shared_dropped,
        shared_twice,
        gate_dropped,
        factor_dropped,
        factor_twice,
        swapped,
        reduced_twice,
        shared_not_reduced,
    )
}


def wrap(owner: Any, name: str, change: Callable[[Any], Any]) -> Fix:
    """Let a method of one object return something else."""
    whole = getattr(owner, name)
    return replace(owner, name, lambda *args, **kwargs: change(whole(*args, **kwargs)))


def watch(owner: Any, name: str, tell: Callable[..., None]) -> Fix:
    """Tell of every call of a method of one object: what it returned, and its arguments by keyword."""
    whole = getattr(owner, name)

    def watched(**arguments: Any) -> Any:
        result = whole(**arguments)
        tell(result, **arguments)
        return result

    return replace(owner, name, watched)


def replace(owner: Any, name: str, value: Any) -> Fix:
    """Set an attribute or a submodule of one object; the result sets it back."""
    before = getattr(owner, name)
    parts = getattr(owner, "_modules", {})
    if name in parts:
        parts[name] = value
        return lambda: parts.update({name: before})
    inherited = callable(before) and name not in getattr(owner, "__dict__", {})
    setattr(owner, name, value)
    return (lambda: delattr(owner, name)) if inherited else (lambda: setattr(owner, name, before))
