"""A layer's experts as operands, as its plan says: routed ones as they arrive, a shared MLP cut to their width."""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from vllm_megamoe.checkpoint.own import OwnLayer
from vllm_megamoe.errors import ConfigError
from vllm_megamoe.experts.canonical import DenseExperts, Experts
from vllm_megamoe.experts.convert import in_halves
from vllm_megamoe.experts.operands import LayerOperands
from vllm_megamoe.experts.slots import Slots
from vllm_megamoe.layout.cast import on_npu
from vllm_megamoe.plan.layer_plan import LayerPlan
from vllm_megamoe.profiles.use_cases import UseCase


class RoutedWeights:
    """The routed experts of a layer on this rank: canonical ones go in, operands come out.

    Args:
        plan: of the layer.
        dtype: the model's, which unquantised weights are rounded to as vLLM rounds every weight that it loads.
        device: where the operands are.
    """

    def __init__(self, plan: LayerPlan, dtype: torch.dtype, device: torch.device) -> None:
        self._plan, self._dtype, self._device = plan, dtype, device
        self._slots = _slots(plan, plan.use_case, plan.experts_per_rank, dtype)

    def put(self, slot: int, experts: Experts) -> None:
        """One expert: its operands are made, or overwritten in the memory that they have."""
        experts = experts.on(self._device)
        if self._plan.facts.gate_up_interleaved:
            experts = _deinterleaved(experts, self._plan.facts.name)
        self._slots.put(slot, experts)

    def put_own(self, slot: int, own: OwnLayer, tensors: Mapping[str, Tensor]) -> None:
        """One expert in the package's own format: its operands are copied as they are where their sizes are the plan's.

        Elsewhere (another padding, a device that keeps formats itself) they are laid out anew, from the same numbers.

        Args:
            slot: of the rank's experts.
            own: the layer's entry.
            tensors: field of ExpertOperands -> as the files hold it.

        Raises:
            CheckpointError: a tensor is not what the entry says.
        """
        sizes, name = self._plan.padding, f"{self._plan.facts.name}.{slot}"
        if not on_npu(self._device) and (own.hidden, own.intermediate_hidden) == (
            sizes.hidden,
            sizes.intermediate_hidden,
        ):
            self._slots.put_operands(slot, own.operands_of(tensors, name), (own.hidden, own.intermediate_hidden))
        else:
            self.put(slot, own.experts_of(tensors, sizes.hidden_was, sizes.intermediate_was, name))

    def fill_dummy(self) -> None:
        """Small random numbers, the same expert in every slot: what vLLM's `--load-format dummy` does to weights."""
        sizes, generator = self._plan.padding, torch.Generator().manual_seed(0)
        shapes = (1, 2 * sizes.intermediate_was, sizes.hidden_was), (1, sizes.hidden_was, sizes.intermediate_was)
        weights = [torch.empty(shape).uniform_(-1e-3, 1e-3, generator=generator).to(self._dtype) for shape in shapes]
        self._slots.fill(DenseExperts(*weights).on(self._device))

    def operands(self) -> LayerOperands:
        """Of all experts.

        Raises:
            LayoutError: one is missing.
        """
        return self._slots.operands()


class SharedWeights:
    """The shared experts of a layer, all of them on every rank: each computes its own rows. Arguments as above."""

    def __init__(self, plan: LayerPlan, dtype: torch.dtype, device: torch.device) -> None:
        self._plan, self._device = plan, device
        self._slots = _slots(plan, plan.shared.use_case or plan.use_case, plan.shared.pieces, dtype)

    def put(self, experts: Experts) -> None:
        """The MLP, cut to the routed width: its operands are made, or overwritten in the memory that they have.

        Raises:
            ConfigError: the loaded MLP is not what the plan was made for.
        """
        plan = self._plan
        got = (experts.num_experts, experts.intermediate, experts.hidden)
        expected = (plan.shared.pieces, plan.padding.intermediate_was, plan.padding.hidden_was)
        if got != expected:
            raise ConfigError(
                f"{plan.facts.name}: the shared experts are {got[0]} of width {got[1]} on rows of {got[2]}; the plan "
                f"expected {expected[0]} of width {expected[1]} on rows of {expected[2]}. Set "
                '"fuse_shared_experts": "off".'
            )
        for piece in range(experts.num_experts):
            self._slots.put(piece, experts.one(piece).on(self._device))

    def operands(self) -> LayerOperands:
        """Of all pieces."""
        return self._slots.operands()


def _slots(plan: LayerPlan, use_case: UseCase, count: int, dtype: torch.dtype) -> Slots:
    sizes = plan.padding
    return Slots(
        use_case,
        count,
        hidden=sizes.hidden,
        intermediate_hidden=sizes.intermediate_hidden,
        stacked=plan.stacked,
        dtype=dtype,
    )


def _deinterleaved(experts: Experts, name: str) -> DenseExperts:
    if not isinstance(experts, DenseExperts):
        raise ConfigError(
            f"{name}: gate and up rows alternate in {experts.kind} experts; expected that of BF16 experts alone. Use "
            "the BF16 checkpoint of this model."
        )
    return replace(experts, w13=in_halves(experts.w13))
