"""Thin adapter to `cann_ops_transformer.ops`; the only module that imports it or torch_npu."""

from typing import Any

from vllm_megamoe.errors import OperatorError


def npu_is_present() -> bool:
    """Whether torch_npu finds a device."""
    import torch_npu

    return bool(torch_npu.npu.is_available())


def create_buffer(group: Any, sizes: tuple[int, ...], arguments: dict[str, Any]) -> Any:
    raise OperatorError("the CANN backend is not part of this version yet; take settings(backend='cpu').")


def call(*args: Any, **arguments: Any) -> Any:
    raise OperatorError("mega_moe: sym_buffer is no SymmBuffer; pass what get_symm_buffer_for_mega_moe returned.")
