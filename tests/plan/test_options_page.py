"""docs/options.md names every option with its default."""

from pathlib import Path

from vllm_megamoe.plan.options import Options


def test_the_page_names_every_option_and_its_default(repository: Path) -> None:
    rows = {}
    for line in (repository / "docs" / "options.md").read_text().splitlines():
        if line.startswith("| `") and not line.startswith(("| `VLLM_", "| `HCCL_")):
            name, values, *_ = (cell.strip() for cell in line.strip("|").split("|"))
            rows[name.strip("`")] = values.split(",")[0].strip("`")
    shown = {name: "none" if value is None else str(value).lower() for name, value in Options().model_dump().items()}
    assert {name: value.lower() for name, value in rows.items()} == shown | {"workspace_budget_gib": "2"}
