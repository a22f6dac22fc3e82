"""Ask the server's config stage about command lines, as `vllm serve` would come to it, and print what it says.

python agreement.py CASES.json

CASES.json maps names to {"folder": a checkpoint's folder with config files alone, "flags": flags of `vllm serve`}.
Prints one line `CASE {name: found}` for each; found is {"plans": [...], "memory": [what the log warns of]},
{"refused": [sentences]} or {"error": text}.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

from live.stand_ins import install, know
from vllm.engine.arg_utils import EngineArgs
from vllm.utils.argparse_utils import FlexibleArgumentParser

from vllm_megamoe.errors import ConfigError
from vllm_megamoe.lanes import startup
from vllm_megamoe.plan.layer_plan import Plan
from vllm_megamoe.plan.plan import make_plan


def ask(folder: str, flags: list[str]) -> dict[str, Any]:
    """What creating the engine's config ends in."""
    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    arguments = parser.parse_args(["--model", folder, *flags])
    made: list[Plan] = []
    memory: list[str] = []
    warned = startup.memory_warning
    startup.memory_warning = lambda *given: memory.append(warned(*given)) or memory[-1]
    startup.make_plan = lambda *given: made.append(make_plan(*given)) or made[-1]
    try:
        EngineArgs.from_cli_args(arguments).create_engine_config()
    except ConfigError as error:
        head, *sentences = str(error).split("\n  ")
        return {"refused": [s.split(". ", 1)[1] for s in sentences]} if sentences else {"error": head}
    finally:
        startup.memory_warning = warned
    return {"plans": [repr(layer) for layer in made[-1].layers], "memory": [text for text in memory if text]}


def main(cases_file: str) -> None:
    install()
    for name, case in json.loads(Path(cases_file).read_text()).items():
        config = json.loads((Path(case["folder"]) / "config.json").read_text())
        if "model_type" in config:
            know(config["model_type"])
        try:
            found = ask(case["folder"], case["flags"])
        except Exception as error:
            # What vLLM itself rejects is a result too; the test decides which one is right.
            found = {"vllm": f"{type(error).__name__}: {error}"[:600]}
        print("CASE " + json.dumps({name: found}), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
