"""A stand-in for `torch_npu` and `cann_ops_transformer` on the CPU, stricter than a device, with its silent faults.

    device, npu     the two modules, for one product and revision
    package         what the wrapper's Python looks like in each revision
    host            a call below the wrapper, and what the device's own checks reject
    communicator    windows and contexts: where rows land, and who shares it
    kernel          what a call computes, with the device's silent faults
    deviations      faults that can be switched on
    install         a whole torch_npu in this process, for real Python code

`VLLM_MEGAMOE_SIMULATE=a3@9.1` puts it where the CANN adapter would import the real packages; nothing else sees it.
"""

from vllm_megamoe.simulator.deviations import Deviations, deviations
from vllm_megamoe.simulator.device import Device, device

__all__ = ["Deviations", "Device", "deviations", "device"]
