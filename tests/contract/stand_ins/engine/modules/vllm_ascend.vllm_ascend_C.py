"""vllm-ascend's kernels, which are not built here; what a norm asks for is defined in `torch_npu.op_plugin...`."""

from asked import answering, note

note("vllm_ascend.vllm_ascend_C")
__getattr__ = answering("vllm_ascend.vllm_ascend_C")
