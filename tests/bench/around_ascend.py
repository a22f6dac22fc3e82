"""A MoE layer under vllm-ascend, through its own MegaMoE path and through our method: one line of JSON.

    python -m bench.around_ascend PRODUCT

Runs in the contract suite's environment, whose scene `calls` does the work on two ranks.
"""

import json
import sys

from bench.around_calls import ANSWER
from contract.support.launch import run

if __name__ == "__main__":
    print(ANSWER + json.dumps(run(sys.argv[1], ["calls"], ranks=2)["calls"][-1]), flush=True)
