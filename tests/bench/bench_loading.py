"""Time loading experts into operands beside reading and copying every byte once, in one run, with peak memory.

    PYTHONPATH=tests python -m bench.bench_loading [--gib 4] [--folder DIR] [--write docs/benchmarks.md]

Each line is a process of its own on a checkpoint that is generated first and read once before anything is timed, so its
files are in the page cache for the copy and for loading alike. Quote the ratio, not the seconds; where the machine does
other work (`--busy`), that of processor time. OMP_NUM_THREADS says on how many cores (2, busy 1).
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.loading import CASES, Sizes, write
from bench.page import put_section

HIDDEN, WIDTH, EXPERTS = 2048, 1024, 32
TITLE = "## Loading"
AIMS = """Aims are 0.8 for the own format and MX, where nothing is transposed, and 0.4 elsewhere. Loading writes into
pages of 2 MiB where the kernel gives them to who asks (`madvise` or `always` in
/sys/kernel/mm/transparent_hugepage/enabled, {pages} here), the copy into small ones, which cost it most of its time:
so loading can be faster than the copy. INT4 codes are added up besides, for the operand's bias."""
PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def sizes_of(gib: float) -> Sizes:
    """As many layers as make this size in BF16; other formats of the same experts are smaller."""
    layer = 2 * 3 * EXPERTS * HIDDEN * WIDTH
    return Sizes(max(1, round(gib * 2**30 / layer)), EXPERTS, HIDDEN, WIDTH)


def measured(folder: Path, name: str, sizes: Sizes) -> dict[str, float]:
    place = folder / CASES[name].format
    if not place.exists():
        write(place, CASES[name].format, sizes)
        os.sync()  # else the disk is written to while others are timed
    command = [sys.executable, "-m", "bench.loading", str(place), name]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    answer = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, float] = json.loads(answer.stdout.splitlines()[-1])
    return found


def table(folder: Path, gib: float, busy: bool) -> str:
    sizes = sizes_of(gib)
    threads = os.environ["OMP_NUM_THREADS"]
    said = (
        f"{sizes.layers} layers of {EXPERTS} experts, hidden {HIDDEN}, intermediate {WIDTH}; torch threads {threads}; "
        f"files in the page cache{', and other programs beside' if busy else ''}.\n"
        "The copy reads every byte once and writes it into new memory that is kept, as loading must. Speed is the\n"
        "copy's time, in the same process, divided by that of loading: 1.0 is as fast as the copy. Behind it the same\n"
        "of processor time, which other work on the machine changes less. Reading is every byte once, kept nowhere.\n\n"
        "Anonymous memory at the peak stands above the operands, in parts of one layer's; the bound is 1.2."
    )
    head = "| | file | reading | copy | speed | of processor time | operands | peak |"
    lines = [said, "", head, "|---" * 8 + "|"]
    for name in CASES:
        print(f"bench: {name}", file=sys.stderr, flush=True)
        found = measured(folder, name, sizes)
        over = (found["peak"] - found["final"]) / found["layer"]
        lines.append(
            f"| {name} | {found['source'] / 2**30:.2f} GiB | {found['read_s']:.2f} s | {found['copy_s']:.2f} s | "
            f"{found['copy_s'] / found['load_s']:.2f} | {found['copy_cpu_s'] / found['load_cpu_s']:.2f} | "
            f"{found['final'] / 2**30:.2f} GiB | {max(over, 0):.2f} |"
        )
    # The kernel marks its choice: `always [madvise] never`.
    chosen = PAGES.read_text().partition("[")[2].partition("]")[0] if PAGES.is_file() else "absent"
    return "\n".join([*lines, "", AIMS.format(pages=chosen)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, default=4.0, help="size of the BF16 checkpoint")
    parser.add_argument("--folder", type=Path, help="where checkpoints are made and kept; a temporary one else")
    parser.add_argument("--write", type=Path, help="a page whose section on loading is replaced")
    parser.add_argument("--busy", action="store_true", help="one core, where others use the machine; the page says so")
    given = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1" if given.busy else "2")
    with tempfile.TemporaryDirectory() as place:
        text = table(given.folder or Path(place), given.gib, given.busy)
    print(text)
    if given.write is not None:
        put_section(given.write, TITLE, text)


if __name__ == "__main__":
    main()
