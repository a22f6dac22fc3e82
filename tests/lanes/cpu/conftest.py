"""A place for vLLM's layers in the test's own process."""

from collections.abc import Iterator

import pytest
import torch

from vllm_megamoe.testing.process import free_port


@pytest.fixture
def vllm_here() -> Iterator[None]:
    """A current VllmConfig, BF16, and parallel groups of this process alone, gone afterwards: others make their own."""
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.distributed import init_distributed_environment, initialize_model_parallel
    from vllm.distributed.parallel_state import destroy_distributed_environment, destroy_model_parallel

    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    with set_current_vllm_config(VllmConfig()):
        init_distributed_environment(1, 0, f"tcp://127.0.0.1:{free_port()}", 0, "gloo")
        initialize_model_parallel(1)
        yield
        destroy_model_parallel()
        destroy_distributed_environment()
    torch.set_default_dtype(before)
