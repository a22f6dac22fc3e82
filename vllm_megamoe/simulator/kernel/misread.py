"""What a device takes for something else than it is, without a word: bytes, formats, scales, clamps, router weights.

- Storage formats: A2 and A3 read those of the first entry into all (op aclnn). 950 of 2026-08 chooses a kernel by
  dispatch type and first routed weight, and looks at no other weight's format (op tiling arch35, groupedMatmulMode).
- Channel scales of A2 and A3: the tiling looks at their dimensions, not at how many there are (op tiling arch22).
- The clamp, and router weights, as each product's kernel reads them.
- FP4 on 950 under CANN 9.1.0, whose only kernel is A8W8: an FP4 dispatch becomes E5M2, FP4 weights are read as FP8.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from vllm_megamoe.acl import AclDtype, AclFormat, block_columns
from vllm_megamoe.layout.cast import format_of
from vllm_megamoe.layout.formatted import FormattedTensor, inner
from vllm_megamoe.numerics.activations import Activation
from vllm_megamoe.ops.arguments import DtypeArgument
from vllm_megamoe.profiles.profile import Profile
from vllm_megamoe.simulator.host import OperatorArguments, element_of, type_name


def relabel(tensor: Tensor, dtype: torch.dtype, fmt: AclFormat, shape: Sequence[int]) -> Tensor:
    """The same bytes as a tensor of another dtype, format and shape; what lies behind its end reads as 0."""
    if (tensor.dtype, format_of(tensor), tuple(tensor.shape)) == (dtype, fmt, tuple(shape)):
        return tensor
    held = inner(tensor).contiguous().view(torch.uint8).flatten()
    blocks = _blocks(fmt, dtype.itemsize, shape)
    expected = math.prod(blocks) * dtype.itemsize
    behind = torch.zeros(max(expected - len(held), 0), dtype=torch.uint8)
    stored = torch.cat([held[:expected], behind]).view(dtype).view(blocks)
    return stored if fmt == AclFormat.ND else FormattedTensor(stored, fmt, shape)


def as_first_entry(tensors: Sequence[Tensor]) -> list[Tensor]:
    """A list as A2/A3 read it: dtype and format of the first entry hold for all (op aclnn)."""
    first = tensors[0]
    return [relabel(tensor, first.dtype, format_of(first), tensor.shape) for tensor in tensors]


def int32_as_blocks(tensors: Sequence[Tensor]) -> list[Tensor]:
    """INT4 in int32 is taken for FRACTAL_NZ whatever it is (op aclnn)."""
    return [
        relabel(tensor, tensor.dtype, AclFormat.FRACTAL_NZ, tensor.shape) if tensor.dtype == torch.int32 else tensor
        for tensor in tensors
    ]


def _blocks(fmt: AclFormat, itemsize: int, shape: Sequence[int]) -> list[int]:
    if fmt == AclFormat.ND:
        return list(shape)
    c0 = block_columns(fmt, itemsize)
    *lead, rows, columns = shape
    return [*lead, -(-columns // c0), -(-rows // 16), 16, c0]


_ND, _NZ = AclFormat.ND, AclFormat.FRACTAL_NZ
_PACKED_C0_32 = AclFormat.FRACTAL_NZ_C0_16
"""What blocks of 32 packed elements are called on a tensor of bytes."""


def kernel_formats(a: OperatorArguments) -> tuple[AclFormat, AclFormat]:
    """Formats in which the chosen kernel reads first and second weights, routed and shared."""
    first, out = a.weight1[0], type_name(a.dispatch_quant_out_dtype)
    is_nz = format_of(first) == _NZ
    if element_of(first, a.weight1_type) != AclDtype.FLOAT4_E2M1.name:
        # E5M2 has no kernel for blocks.
        return (_NZ, _NZ) if is_nz and out == AclDtype.FLOAT8_E4M3FN.name else (_ND, _ND)
    if out == AclDtype.FLOAT8_E4M3FN.name:
        return _PACKED_C0_32, _PACKED_C0_32
    return (_NZ if is_nz else _ND), _PACKED_C0_32


def as_kernel_reads(tensors: Sequence[Tensor], fmt: AclFormat) -> list[Tensor]:
    """The same bytes in the kernel's format."""
    return [relabel(tensor, tensor.dtype, fmt, tensor.shape) for tensor in tensors]


def read_scales(scales: Sequence[Tensor], weights: Sequence[Tensor], declared: DtypeArgument) -> list[Tensor]:
    """One word per output channel: those that are too many are not read, those that lack come from behind the tensor.

    Args:
        scales: 8-byte words [n].
        weights: of the same experts, [K, N] in their carrier.
        declared: element type of the weights.
    """
    if len(scales) != len(weights):
        return list(scales)
    return [_first_words(scale, _outputs(weight, declared)) for scale, weight in zip(scales, weights, strict=True)]


def _outputs(weight: Tensor, declared: DtypeArgument) -> int:
    packed = 2 * weight.element_size() if element_of(weight, declared) == AclDtype.INT4.name else 1
    return int(weight.shape[-1]) * packed


def _first_words(scale: Tensor, expected: int) -> Tensor:
    if scale.dim() != 1 or scale.dtype.itemsize != 8 or len(scale) == expected:
        return scale
    words = scale.contiguous().view(torch.int64)
    behind = torch.full((max(expected - len(scale), 0) * 8,), BEHIND, dtype=torch.uint8).view(torch.int64)
    return torch.cat([words[:expected], behind]).view(scale.dtype)


def read_clamp(activation: str, clamp: float | None, profile: Profile) -> float | None:
    """The clamp that reaches the kernel: none for situglu, whose wrapper drops it, and none on 950 in 9.1.0."""
    return None if activation == "situglu" or profile.name == "950@9.1" else clamp


def device_activation(activation: Activation, clamp: float | None, profile: Profile) -> Activation:
    """The activation that the product computes.

    Args:
        activation: as the documents define it, with 0 for no clamp.
        clamp: of `read_clamp`.
        profile: A2/A3 take 0 for no clamp too; 950 executes 0 like any other number in the newer source, and has no
            clamp at all in 9.1.0, not even that of infinities (op kernels arch22 and arch35).
    """
    if not profile.is_950:
        return activation
    if profile.revision == "9.1":
        return replace(activation, clamp=None)
    return replace(activation, clamp=0.0) if clamp == 0 else activation


BEHIND = 0x7F
"""Byte that stands for the memory behind a tensor, which is anything on a device: float32 of about 3.4e38."""


def read_router_weights(weights: Tensor, profile: Profile) -> Tensor:
    """[T, K] of any dtype -> float32 [T, K].

    A2/A3 read the memory as float32 whatever is in it, and past its end where elements are smaller (op kernel arch22,
    KernelMoeTokenUnpermute with float weights); 950 converts.
    """
    if not profile.is_a2_a3:
        return weights.float()
    held = weights.contiguous().view(torch.uint8).flatten()
    expected = weights.numel() * 4
    behind = torch.full((max(expected - len(held), 0),), BEHIND, dtype=torch.uint8)
    return torch.cat([held[:expected], behind]).view(torch.float32).view(weights.shape)


_TORCH = {AclDtype.FLOAT8_E5M2.name: torch.float8_e5m2, AclDtype.FLOAT8_E4M3FN.name: torch.float8_e4m3fn}
FP4 = AclDtype.FLOAT4_E2M1.name


def without_fp4(a: OperatorArguments) -> OperatorArguments:
    """The call as that kernel makes it; a call without FP4 is returned as it is."""
    out = type_name(a.dispatch_quant_out_dtype)
    if out == FP4:
        out = AclDtype.FLOAT8_E5M2.name
    elif FP4 not in (element_of(a.weight1[0], a.weight1_type), element_of(a.weight2[0], a.weight2_type)):
        return a
    if out is None:
        return a
    return replace(
        a,
        dispatch_quant_out_dtype=_TORCH[out],
        weight1=_misread(a.weight1, a.weight1_type, _TORCH[out]),
        weight2=_misread(a.weight2, a.weight2_type, _TORCH[out]),
        weight1_type=None,
        weight2_type=None,
    )


def _misread(tensors: Sequence[Tensor], declared: torch.dtype | int | None, dtype: torch.dtype) -> list[Tensor]:
    """Packed [.., N, K / 2] bytes read as [.., N, K]: twice as many, so the second half comes from behind the tensor.

    What lies there is unknown; here the same bytes come again.
    """
    found = []
    for tensor in tensors:
        if element_of(tensor, declared) != FP4:
            found.append(tensor)
            continue
        held = inner(tensor).contiguous().view(torch.uint8).flatten()
        wide = [*tensor.shape[:-1], tensor.shape[-1] * 2]
        found.append(torch.cat([held, held])[: 2 * tensor.numel()].view(wide).view(dtype))
    return found
