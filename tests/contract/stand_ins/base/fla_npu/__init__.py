"""Stands for fla_npu, kernels of gated linear attention; vllm-ascend imports them for models that have it."""
