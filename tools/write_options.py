"""Write the tables of docs/options.md: options from plan/options.py, variables from environment/variables.py.

python -m tools.write_options
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from tools.write_models import between
from vllm_megamoe.environment import VARIABLES
from vllm_megamoe.plan.options import Options
from vllm_megamoe.profiles.profile import PROFILE_NAMES

PAGE = Path(__file__).resolve().parents[1] / "docs" / "options.md"


def _options() -> Iterator[tuple[str, ...]]:
    yield "option", "values, default first", "meaning"
    for name, field in Options.model_fields.items():
        values = PROFILE_NAMES if name == "profile" else _values(field)
        yield f"`{name}`", ", ".join(f"`{value}`" for value in values), field.description or ""


def _values(field: FieldInfo) -> list[str]:
    default = field.default
    if get_origin(field.annotation) is Literal:
        return [str(value) for value in sorted(get_args(field.annotation), key=lambda value: value != default)]
    return ["none" if default is None else str(default).lower() if isinstance(default, bool) else f"{default:g}"]


def _variables() -> Iterator[tuple[str, ...]]:
    yield "variable", "meaning", "default"
    for variable in VARIABLES.values():
        if variable.about:
            yield f"`{variable.name}`", variable.about, variable.default


def page(text: str) -> str:
    """The page with both tables as the data has them."""
    return between(between(text, "options", _options()), "variables", _variables())


def main() -> int:
    """Write the page."""
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print("docs/options.md: written")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
