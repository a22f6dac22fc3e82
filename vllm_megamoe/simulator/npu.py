"""Storage formats as torch_npu casts and reports them, on tensors that carry theirs.

The part of `torch_npu` that the operator's adapter and the layouts ask for; nothing of torch is touched. What a cast
makes of which element type: torch_npu csrc/aten/common/FormatCastKernelNpu.cpp and aclnnNpuFormatCast.md (table of
srcTensor, additionalDtype and actualFormat).
"""

from types import ModuleType, SimpleNamespace

import torch
from torch import Tensor

from vllm_megamoe.acl import AclFormat
from vllm_megamoe.layout.cast import host_format_cast, host_format_of
from vllm_megamoe.layout.dtypes import dtype_name, normalise_dtype
from vllm_megamoe.profiles.profile import Profile

_BASE_FORMATS = {4: 0, 5: 30}
"""Plain storage is called NCHW and NCDHW for tensors of 4 and 5 dimensions, else ND (torch_npu)."""

Dtype = torch.dtype | int | None

_FP4 = "FLOAT4_E2M1"
# (elements, elements that the block's width is counted in) -> the format that results, 950.
_NARROW = {
    (_FP4, "FLOAT8_E4M3FN"): AclFormat.FRACTAL_NZ_C0_32,
    **{(wide, half): AclFormat.FRACTAL_NZ_C0_16 for wide in ("FLOAT", "INT32") for half in ("FLOAT16", "BF16")},
    ("FLOAT", "FLOAT8_E4M3FN"): AclFormat.FRACTAL_NZ_C0_32,
}
_SAME = {"INT8", "UINT8", "FLOAT16", "BF16", "FLOAT8_E4M3FN", _FP4}
_SAME_ON_A2_A3 = _SAME - {"FLOAT8_E4M3FN", _FP4}
# torch_npu counts a packed tensor in bytes, so the name halves; it has no name for the wide blocks of 4-bit elements.
_OF_BYTES = {AclFormat.FRACTAL_NZ_C0_32: AclFormat.FRACTAL_NZ_C0_16}


class Formats:
    """The format functions of one torch_npu.

    Args:
        profile: of the product: A2 and A3 cast no FP8 and no FP4.
        allowed: whether casts to block formats are on from the start. Builds of torch_npu differ in it; where they are
            off, such a cast does nothing, and says nothing.

    Attributes:
        config: `torch_npu.npu.config`.
    """

    def __init__(self, profile: Profile, *, allowed: bool) -> None:
        self.profile = profile
        self.config = SimpleNamespace(allow_internal_format=allowed)

    def npu_format_cast(
        self, input: Tensor, acl_format: int, *, customize_dtype: Dtype = None, input_dtype: Dtype = None
    ) -> Tensor:
        """The tensor in another format.

        Args:
            input: a matrix or a stack; 4-bit elements packed, two in a byte of its last dimension.
            acl_format: FRACTAL_NZ or ND; which FRACTAL_NZ results follows from the two types.
            customize_dtype: the type whose 32 bytes' worth of elements make a block's width; None: that of the input.
            input_dtype: what the elements are, where the tensor's dtype does not tell.

        Raises:
            RuntimeError: a pair of formats and types that the device does not cast.
        """
        if int(acl_format) == int(host_format_of(input)):
            return input
        if int(acl_format) == AclFormat.ND:
            return host_format_cast(input, AclFormat.ND)
        source = _name(input.dtype if input_dtype is None else input_dtype, "input_dtype")
        target = self._actual(source, source if customize_dtype is None else _name(customize_dtype, "customize_dtype"))
        if int(acl_format) != AclFormat.FRACTAL_NZ or target is None:
            raise RuntimeError(
                f"[{self.profile.name} simulated] npu_format_cast of {source} to format {int(acl_format)} with "
                f"customize_dtype={customize_dtype}: aclnnNpuFormatCast not support; expected ND or FRACTAL_NZ and a "
                "pair of types of its table (aclnnNpuFormatCast.md)"
            )
        if not input.is_contiguous():
            raise RuntimeError(
                f"[{self.profile.name} simulated] npu_format_cast of a {list(input.shape)} with strides "
                f"{input.stride()}; expected a contiguous tensor: no document says what becomes of others"
            )
        if not self.config.allow_internal_format or self._loses_format(input):
            return input
        return host_format_cast(input, target)

    def _loses_format(self, tensor: Tensor) -> bool:
        """Whether the cast does nothing and says nothing: a part of a storage, as one expert of a stack is, stays ND on
        A2 and A3 (FormatCastKernelNpu.cpp, ShouldFallbackNzToNd). A view of a whole storage cannot be told apart here.
        """
        return not self.profile.is_950 and tensor.untyped_storage().nbytes() != tensor.nbytes

    def _actual(self, source: str, counted: str) -> AclFormat | None:
        """The format as torch_npu reports it, None where there is no such cast."""
        if not self.profile.is_950:
            return AclFormat.FRACTAL_NZ if source == counted and source in _SAME_ON_A2_A3 else None
        if source == _FP4:
            real = _NARROW.get((source, counted))
            return None if real is None else _OF_BYTES[real]
        same = AclFormat.FRACTAL_NZ if source == counted and source in _SAME else None
        return _NARROW.get((source, counted), same)

    def get_npu_format(self, tensor: Tensor) -> int:
        """The format's number."""
        found = host_format_of(tensor)
        return _BASE_FORMATS.get(tensor.dim(), int(found)) if found == AclFormat.ND else int(found)


def _name(value: torch.dtype | int, where: str) -> str:
    """An element type's name in ACL."""
    if isinstance(value, torch.dtype):
        return dtype_name(value)
    found = normalise_dtype(value, where)
    return "UNDEFINED" if found is None else found.name


def make_small_torch_npu(profile: Profile) -> ModuleType:
    """A module that stands in no import path."""
    module = ModuleType("torch_npu", "Simulated by vllm_megamoe.simulator.")
    formats = Formats(profile, allowed=False)
    names = {
        "npu_format_cast": formats.npu_format_cast,
        "get_npu_format": formats.get_npu_format,
        "float4_e2m1fn_x2": torch.float4_e2m1fn_x2,
        "npu": SimpleNamespace(is_available=lambda: True, config=formats.config),
    }
    for name, value in names.items():
        setattr(module, name, value)
    return module
