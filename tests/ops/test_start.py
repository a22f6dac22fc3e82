"""What `import vllm_megamoe.ops` costs beside `import torch`: no compiler, of torch's or of LLVM's."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["vllm_megamoe.ops", "vllm_megamoe.plugin"])
def test_no_compiler_is_imported(module: str) -> None:
    script = (
        f"import sys, {module}; print(*sorted(m for m in sys.modules if m in ('torch._dynamo', 'llvmlite', 'numba')))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
