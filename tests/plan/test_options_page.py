"""docs/options.md: every option with its default, every variable that a user may set, as the code has them."""

from pathlib import Path

from tools import write_options
from vllm_megamoe.environment import VARIABLES
from vllm_megamoe.plan.options import Options


def rows(page: str) -> dict[str, list[str]]:
    """First cell of each row of a table -> the others."""
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line[:3] == "| `"]
    return {name.strip("`"): others for name, *others in cells}


def test_the_page_is_as_the_code_has_it() -> None:
    text = write_options.PAGE.read_text()
    assert text == write_options.page(text), "run python -m tools.write_options"


def test_the_page_names_every_option_and_its_default(repository: Path) -> None:
    found = rows((repository / "docs" / "options.md").read_text())
    for name, default in Options().model_dump().items():
        values, meaning = found[name]
        shown = "none" if default is None else f"{default:g}" if isinstance(default, float) else str(default).lower()
        assert values.split(",")[0] == f"`{shown}`"
        assert len(meaning) > 20


def test_the_page_names_every_variable_but_those_of_our_own_tests(repository: Path) -> None:
    found = rows((repository / "docs" / "options.md").read_text())
    assert set(found) - set(Options.model_fields) == set(VARIABLES) - {
        "VLLM_MEGAMOE_SIMULATED_NPU",
        "VLLM_MEGAMOE_SHARED",
    }
    assert all(meaning and default for name, (meaning, default) in found.items() if name in VARIABLES)
