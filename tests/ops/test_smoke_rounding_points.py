"""The numbers of docs/numerics.md and those in the code are the same."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_rounding_point_is_described_once_and_marked_in_code() -> None:
    described = re.findall(r"^\| (R\d+) \|", (ROOT / "docs" / "numerics.md").read_text(), re.MULTILINE)
    sources = (ROOT / "vllm_megamoe" / "ops" / "twin").glob("*.py")
    marked = {
        number
        for path in sources
        for line in re.findall(r"#.*", path.read_text())
        for number in re.findall(r"\bR\d+\b", line)
    }
    assert sorted(described) == sorted(marked)
    assert len(described) == 18
