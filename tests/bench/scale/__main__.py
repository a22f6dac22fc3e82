"""Write docs/scale.md and its picture.

PYTHONPATH=tests python -m bench.scale [--write docs/scale.md] [--replay ids.npy]
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from bench.scale.page import draw, page


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, help="write the page to this file, the picture beside it")
    parser.add_argument("--replay", type=Path, help="recorded topk_ids, a .npy file of integers [tokens, topk]")
    given = parser.parse_args()
    ids = None if given.replay is None else torch.from_numpy(np.load(given.replay)).long()
    text = page(ids)
    print(text)
    if given.write is not None:
        given.write.write_text(text)
        draw(given.write.with_suffix(".svg"))


if __name__ == "__main__":
    main()
