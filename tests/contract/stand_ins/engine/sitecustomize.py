"""Modules that a whole engine of vllm-ascend imports and that neither the simulator nor any package here has.

Python runs this file in every process that finds its folder on PYTHONPATH: vLLM starts processes of its own. A module
is the file of its full name in the folder beside this one.
"""

import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path

HERE = Path(__file__).parent / "modules"


class Finder(MetaPathFinder):
    """Comes last: what exists elsewhere is taken from there."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        place = HERE / f"{fullname}.py"
        if not place.is_file():
            return None
        parts = [] if any(HERE.glob(f"{fullname}.*.py")) else None
        return spec_from_file_location(fullname, place, submodule_search_locations=parts)


sys.meta_path.append(Finder())
