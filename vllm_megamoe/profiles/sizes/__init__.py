"""Sizes of the operator on each product, as plain formulas: window, workspace, wire, weights."""

from vllm_megamoe.profiles.sizes.helper import HelperSize, operator_helper
from vllm_megamoe.profiles.sizes.received import received_rows
from vllm_megamoe.profiles.sizes.weights import ExpertBytes, expert_bytes, weight_bytes
from vllm_megamoe.profiles.sizes.window import ccl_buffer_size, hccl_buffsize_mb, smallest_window, window_memory
from vllm_megamoe.profiles.sizes.wire import WireBytes, wire_bytes_per_token
from vllm_megamoe.profiles.sizes.workspace import workspace_bytes

__all__ = [
    "ExpertBytes",
    "HelperSize",
    "WireBytes",
    "ccl_buffer_size",
    "expert_bytes",
    "hccl_buffsize_mb",
    "operator_helper",
    "received_rows",
    "smallest_window",
    "weight_bytes",
    "window_memory",
    "wire_bytes_per_token",
    "workspace_bytes",
]
