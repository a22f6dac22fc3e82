"""Build engine configs the way `vllm serve` does, in one process, and print how each ended. Run by test_bad_input.

python config_cases.py CASES.json
"""

import json
import sys
from pathlib import Path

from vllm.engine.arg_utils import EngineArgs


def main(cases_file: str) -> None:
    for name, arguments in json.loads(Path(cases_file).read_text()).items():
        try:
            config = EngineArgs(**arguments).create_engine_config()
            quant = config.quant_config
            ended = {"config": type(quant).__name__, "quantization": config.model_config.quantization}
        except Exception as error:
            # Every way to end is a result here; the test decides which one is right.
            ended = {"error": type(error).__name__, "message": str(error)}
        print("CASE " + json.dumps({name: ended}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
