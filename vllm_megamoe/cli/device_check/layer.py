"""A small layer of two ranks: experts with scales of their own, tokens, one call of it on the device or the twin."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from vllm_megamoe.environment import simulated_profile
from vllm_megamoe.experts.canonical import DenseExperts, Experts
from vllm_megamoe.experts.convert import convert
from vllm_megamoe.experts.operands import LayerOperands
from vllm_megamoe.experts.steps import to_kind
from vllm_megamoe.numerics.switches import Numerics
from vllm_megamoe.ops import get_symm_buffer_for_mega_moe, mega_moe, settings
from vllm_megamoe.ops.arguments import tensors_of
from vllm_megamoe.ops.cann.adapter import make_communicator
from vllm_megamoe.ops.cann.installed import installed
from vllm_megamoe.profiles.limits import limits_of
from vllm_megamoe.profiles.profile import find_profile
from vllm_megamoe.profiles.use_cases import UseCase

RANKS = 2
WAIT_S = 60.0


@dataclass(frozen=True, slots=True)
class Size:
    """Sizes of the layer; experts are those of both ranks."""

    hidden: int = 1024
    intermediate: int = 1024
    experts: int = 4
    topk: int = 2
    tokens: int = 16


_LEAST_950_91 = Size(hidden=4096, intermediate=512, experts=6, topk=6)
"""The smallest layer that 950 takes in 9.1.0 (profiles.limits)."""


@dataclass(frozen=True)
class Layer:
    """One rank's part.

    Attributes:
        profile: name; its layout of lists and its bound of received rows hold.
        experts: canonical, of this rank, quantised as the use case has them.
        x: bf16 [T, H].
        topk_ids, topk_weights: int32, float32 [T, K].
        max_recv_token_num: None for what the product needs.
        arrange: what happens to the operands before a call.
    """

    profile: str
    use_case: UseCase
    size: Size
    experts: Experts
    x: Tensor
    topk_ids: Tensor
    topk_weights: Tensor
    max_recv_token_num: int | None = None
    arrange: Callable[[dict[str, Any]], dict[str, Any]] = field(default=lambda given: given)

    @property
    def most(self) -> int:
        """Rows that can come to a rank."""
        return self.size.tokens * RANKS * min(self.size.topk, self.size.experts // RANKS)

    @property
    def _capacity(self) -> int:
        if self.max_recv_token_num is not None:
            return self.max_recv_token_num
        factor = limits_of(find_profile(self.profile)).receive_factor_int4.value
        return self.most * factor if self.use_case is UseCase.A8W4_INT and factor > 1 else 0

    def _given(self, place: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """Arguments of both functions, tensors on a device."""
        moved = {f.name: getattr(self.experts, f.name) for f in fields(self.experts)}
        moved = {name: value.to(place) if isinstance(value, Tensor) else value for name, value in moved.items()}
        stacked = limits_of(find_profile(self.profile)).layouts.value == ("stacked",)
        operands: LayerOperands = convert(type(self.experts)(**moved), self.use_case, stacked=stacked)
        create = {
            "num_experts": self.size.experts,
            "num_max_tokens_per_rank": self.size.tokens,
            "num_topk": self.size.topk,
            "max_recv_token_num": self._capacity,
            **operands.buffer_arguments(),
        }
        tokens = {"x": self.x, "topk_ids": self.topk_ids.clone(), "topk_weights": self.topk_weights}
        given = {name: value.to(place) for name, value in tokens.items()} | operands.arguments()
        return create, self.arrange(given)

    def on_twin(self, numerics: Numerics | None = None) -> tuple[Tensor, Tensor]:
        """y float32 and expert_token_nums of the twin."""
        create, given = self._given("cpu")
        with settings(backend="cpu", profile="none", numerics=numerics or Numerics(), timeout_s=WAIT_S):
            buffer = get_symm_buffer_for_mega_moe(dist.new_group([0, 1], backend="gloo"), **create)
            y, counts = mega_moe(**given, sym_buffer=buffer)
        return y.float(), counts

    def through_adapter(self) -> tuple[Tensor, Tensor]:
        """The same of the device, as a served layer calls it, under the profile's rules."""
        create, given = self._given(device_of_rank())
        with settings(backend="cann", profile=self.profile, timeout_s=WAIT_S):
            buffer = get_symm_buffer_for_mega_moe(dist.new_group([0, 1]), **create)
            y, counts = mega_moe(**given, sym_buffer=buffer)
        return y.float().cpu(), counts.cpu()

    def on_device(self) -> tuple[Tensor, Tensor, Any]:
        """The same by the package's own functions, past all rules of ours; and the package's buffer."""
        create, given = self._given(device_of_rank())
        group = dist.new_group([0, 1])
        make_communicator(group)
        operator = installed()
        buffer = operator.create(group, **create)
        lists = {name: tensors_of(value) for name, value in given.items() if name.startswith(("l1_", "l2_"))}
        named = {name: value for name, value in (given | lists).items() if value is not None and name in given}
        named = {name: value for name, value in named.items() if not isinstance(value, list) or value}
        y, counts = operator.run(**named, sym_buffer=buffer)
        return y.float().cpu(), counts.cpu(), buffer


def device_of_rank() -> str:
    """Where tensors live: the rank's NPU, the CPU where one is simulated."""
    return "cpu" if simulated_profile() else f"npu:{dist.get_rank()}"


def make_layer(profile: str, use_case: UseCase, *, seed: int = 0) -> Layer:
    """A layer of Gaussian experts; each expert, and each output channel of it, has a magnitude of its own."""
    rank = dist.get_rank()
    size = _LEAST_950_91 if profile == "950@9.1" else Size()
    source = torch.Generator().manual_seed(1000 * seed + rank)
    own = size.experts // RANKS
    w13 = _weights(source, own, 2 * size.intermediate, size.hidden)
    w2 = _weights(source, own, size.hidden, size.intermediate)
    scores = torch.rand(size.tokens, size.experts, generator=source).topk(size.topk)
    return Layer(
        profile=profile,
        use_case=use_case,
        size=size,
        experts=to_kind(DenseExperts(w13, w2), use_case),
        x=torch.randn(size.tokens, size.hidden, generator=source).bfloat16(),
        topk_ids=scores.indices.int(),
        topk_weights=scores.values,
    )


def _weights(source: torch.Generator, experts: int, outputs: int, inputs: int) -> Tensor:
    magnitude = 1 + torch.rand(experts, outputs, 1, generator=source) + torch.arange(experts)[:, None, None]
    weights: Tensor = torch.randn(experts, outputs, inputs, generator=source) * magnitude / (2 * inputs**0.5)
    return weights.bfloat16()


def with_ids(layer: Layer, ids: Sequence[int]) -> Layer:
    """All tokens of the layer to the same experts."""
    return replace(layer, topk_ids=torch.tensor([list(ids)] * layer.size.tokens, dtype=torch.int32))
