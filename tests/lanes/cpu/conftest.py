"""A place for vLLM's layers in the test's own process."""

from collections.abc import Iterator

import pytest
import torch

from vllm_megamoe.testing.process import free_port


@pytest.fixture
def vllm_here() -> Iterator[None]:
    """A current VllmConfig, BF16, and parallel groups of this process alone."""
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.distributed import init_distributed_environment, initialize_model_parallel, model_parallel_is_initialized

    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    with set_current_vllm_config(VllmConfig()):
        if not model_parallel_is_initialized():
            init_distributed_environment(1, 0, f"tcp://127.0.0.1:{free_port()}", 0, "gloo")
            initialize_model_parallel(1)
        yield
    torch.set_default_dtype(before)
