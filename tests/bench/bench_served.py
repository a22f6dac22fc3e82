"""Tokens a second of a served MoE model through the operator, beside vLLM's own CPU MoE, each in an engine of its own.

    PYTHONPATH=tests python -m bench.bench_served [--cases bf16 a8w8-int] [--tokens 24] [--write docs/benchmarks.md]

Hidden 2048, intermediate 768, 32 experts, top-8, 4 layers, dummy weights, eager, one rank. Prefill: 16 prompts of 512
tokens and one token each. Decode: the time of more tokens for so many sequences, over that number. Quote the ratios.
Our engine decodes on, in turn while its expert counts are read every second, as they are in service, and while nobody
reads them.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.page import put_section
from contract.support.engine import Model

TITLE = "## Served"
MODEL = Model(
    hidden=2048,
    intermediate=768,
    experts=32,
    topk=8,
    changes={"num_hidden_layers": 4, "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 128},
)
PROMPT, PROMPTS = 512, 16
SEQUENCES = (1, 16, 64)
BASE = "vLLM's own MoE"
CASES: dict[str, dict[str, Any] | None] = {
    BASE: None,
    "bf16": {},
    "a8w8-int": {"use_case": "a8w8-int", "requant": "allow"},
}

READ = "counts read"
ROUNDS = 9
"""Of decoding while the counts are read, and while they are not."""
_MARK = "RATES "

Rates = dict[str, float]
"""Tokens a second, by what was measured."""


def tell(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)


def set_reading(worker: Any, on: bool) -> None:
    """Have the thread of this worker's load report look, or find nothing to do."""
    from vllm_megamoe.layer.load_report import REPORT, LoadReport

    look = LoadReport.lines.__get__(REPORT) if on else lambda *, last=False: []
    setattr(REPORT, "lines", look)  # noqa: B010


def rates(folder: Path, options: dict[str, Any] | None, tokens: int) -> Rates:
    """Of one engine, which is started here."""
    from vllm import LLM, SamplingParams

    ours = {} if options is None else {"quantization": "megamoe", "additional_config": {"megamoe": options}}
    llm = LLM(
        str(folder),
        load_format="dummy",
        skip_tokenizer_init=True,
        enforce_eager=True,
        max_model_len=1024,
        max_num_batched_tokens=2048,
        max_num_seqs=64,
        enable_prefix_caching=False,
        disable_log_stats=True,
        **ours,
    )

    def seconds(prompts: int, length: int, new: int) -> float:
        given = [{"prompt_token_ids": [(7 * n + place) % 500 for place in range(length)]} for n in range(prompts)]
        sampling = SamplingParams(temperature=0, max_tokens=new, ignore_eos=True, detokenize=False)
        start = time.perf_counter()
        llm.generate(given, sampling, use_tqdm=False)
        return time.perf_counter() - start

    seconds(1, 64, 2)
    found = {"prefill": PROMPTS * PROMPT / min(seconds(PROMPTS, PROMPT, 1) for _ in range(2))}
    for count in SEQUENCES:
        # The shortest of two: whatever else the machine does only adds time.
        first, more = (min(seconds(count, 16, new) for _ in range(2)) for new in (1, 1 + tokens))
        if more <= first:
            raise RuntimeError(f"{tokens} tokens more took {more - first:.2f} s: the machine is too busy to measure")
        found[f"decode, {count} sequences"] = count * tokens / (more - first)
    if options is not None:
        took: dict[bool, list[float]] = {True: [], False: []}
        for turn in range(2 * ROUNDS):
            on = turn % 2 == 0
            llm.collective_rpc(set_reading, args=(on,))
            took[on].append(seconds(SEQUENCES[1], 16, 4 * tokens))
        found[READ] = statistics.median(took[True]) / statistics.median(took[False])
    return found


def measured(folder: Path, name: str, tokens: int) -> Rates:
    """The same in a process of its own."""
    tell(f"served, {name}")
    command = [sys.executable, "-m", "bench.bench_served", "--one", str(folder), json.dumps(CASES[name]), str(tokens)]
    ours = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "2"}
    ours |= {"VLLM_ALLOW_INSECURE_SERIALIZATION": "1"}  # a function in collective_rpc
    path = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(
        command, env={**ours, **os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, text=True, check=True
    )
    # The engine's own processes may write behind it.
    (line,) = (line for line in done.stdout.splitlines() if line.startswith(_MARK))
    found: Rates = json.loads(line.removeprefix(_MARK))
    return found


def section(cases: list[str], tokens: int) -> str:
    """The page's section."""
    with tempfile.TemporaryDirectory() as name:
        folder = MODEL.write(Path(name) / "model")
        base = measured(folder, BASE, tokens)
        ours = {case: measured(folder, case, tokens) for case in cases}
    lines = [
        f"Engines of hidden {MODEL.hidden}, intermediate {MODEL.intermediate}, {MODEL.experts} experts,",
        f"top-{MODEL.topk}, 4 layers, eager, one rank; tokens a second of vLLM's own MoE, ours divided by that.",
        "",
        "| | " + " | ".join(base) + " |",
        "|---" * (len(base) + 1) + "|",
        f"| {BASE} | " + " | ".join(f"{rate:.1f}" for rate in base.values()) + " |",
    ]
    for case, found in ours.items():
        lines.append(f"| mega_moe, {case} | " + " | ".join(f"{found[key] / base[key]:.2f}" for key in base) + " |")
    said = ", ".join(f"{found[READ]:.3f} ({case})" for case, found in ours.items())
    lines += [
        "",
        f"Time of decoding {SEQUENCES[1]} sequences while expert counts are read for metrics and log, divided by that",
        f"while nobody reads them, in turn in one engine, medians of {ROUNDS}: {said}.",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=[name for name in CASES if name != BASE], default=["bf16"])
    parser.add_argument("--tokens", type=int, default=24, help="that are decoded for each sequence")
    parser.add_argument("--write", type=Path, help="a page whose section is replaced")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one is not None:
        folder, options, tokens = given.one
        print(_MARK + json.dumps(rates(Path(folder), json.loads(options), int(tokens))), flush=True)
        return
    text = section(given.cases, given.tokens)
    print(text)
    if given.write is not None:
        put_section(given.write, TITLE, text)


if __name__ == "__main__":
    main()
