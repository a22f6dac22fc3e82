"""Sizes that were given beside a command line: they win over those of the line, as the megamoe options do."""

from dataclasses import replace

from vllm_megamoe.cli.request import Request
from vllm_megamoe.cli.serve_line.line import ServeLine
from vllm_megamoe.cli.serve_line.step import Step
from vllm_megamoe.cli.serve_line.write import make_flag, put


def set_given(line: ServeLine, request: Request) -> tuple[ServeLine, list[Step]]:
    """The line with `--tp`, `--dp`, `--max-num-batched-tokens` and `--dtype` of the request in it."""
    given = {
        "tensor-parallel-size": request.tensor_parallel,
        "data-parallel-size": request.data_parallel,
        "max-num-batched-tokens": request.max_num_batched_tokens,
        "dtype": None if request.dtype == "auto" else request.dtype,
    }
    steps = []
    for name, value in given.items():
        found = line.value(name)
        if value is None or found == str(value):
            continue
        line = replace(line, flags=put(line.flags, make_flag(name, str(value))))
        why = "It was given beside the line" + ("." if found is None else f", which says {found}.")
        steps.append(Step(action="add" if found is None else "set", what=f"--{name} {value}", why=why))
    return line, steps
