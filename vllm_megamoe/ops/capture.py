"""Whether a graph is being traced or captured at the moment."""

import torch


def is_capturing() -> bool:
    """Asked of torch.compile, and of torch_npu where something else has loaded it."""
    asked = getattr(getattr(torch, "npu", None), "is_current_stream_capturing", None)
    return torch.compiler.is_compiling() or bool(asked is not None and asked())
