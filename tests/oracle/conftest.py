"""Puts tests/ on the path: the oracle is shared by several test folders and by the ranks that they start."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
