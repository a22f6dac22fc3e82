"""One call as the operator's host code gets it, below the Python wrapper (op csrc, npu_mega_moe)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

DtypeArgument = torch.dtype | int | None
Tensors = Sequence[Tensor] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorArguments:
    """Names as in the operator's schema; `activation_params` still has its names."""

    context: Tensor
    x: Tensor
    topk_ids: Tensor
    topk_weights: Tensor
    weight1: Sequence[Tensor]
    weight2: Sequence[Tensor]
    moe_expert_num: int
    ep_world_size: int
    ccl_buffer_size: int
    weight_scales1: Tensors = None
    weight_scales2: Tensors = None
    bias1: Tensors = None
    bias2: Tensors = None
    x_active_mask: Tensor | None = None
    shared_weight1: Tensors = None
    shared_weight2: Tensors = None
    shared_weight_scales1: Tensors = None
    shared_weight_scales2: Tensors = None
    shared_bias1: Tensors = None
    shared_bias2: Tensors = None
    max_recv_token_num: int = 0
    dispatch_quant_mode: int = 0
    combine_quant_mode: int = 0
    comm_alg: str = ""
    num_max_tokens_per_rank: int = 0
    activation: str = "swiglu"
    activation_clamp: float | None = None
    activation_params: Mapping[str, float] = field(default_factory=dict)
    dispatch_quant_out_dtype: DtypeArgument = None
    weight1_type: DtypeArgument = None
    weight2_type: DtypeArgument = None
    topk_weights_type: int = 0

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            if name in _LISTS and isinstance(value, Tensor):
                raise RuntimeError(
                    f"npu_mega_moe() Expected a value of type 'List[Tensor]' for argument '{name}' but instead found "
                    f"type 'Tensor'."
                )


_LISTS = frozenset(
    name
    for name in OperatorArguments.__dataclass_fields__
    if name.startswith(("weight_scales", "bias", "shared_")) or name in ("weight1", "weight2")
)
