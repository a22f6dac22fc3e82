"""The yardstick of the checkpoint loaders on one screen: every checkpoint, what to answer, and what must arrive.

    @pytest.mark.parametrize("case", GENERATED, ids=str)
    def test_loads(case, tmp_path):
        folder = case.place(tmp_path)                     # FIXTURES: case.place(shared_dir)
        assert plan(folder).answer == case.answer         # exact, consent or refused (why: case.refused)
        for layer, expected in case.expected(folder).items():
            for e, expert in enumerate(expected.experts):  # expert.gate, .up [I, H], .down [H, I]
                loaded = ...                               # dequantised from the operator's bytes, float64
                if case.answer == "exact":                  # into case.auto[case.kind_of(folder, layer)]
                    assert (loaded == expert.gate.values).all()
                else:                                      # by consent: at most what this loss gives
                    loss(expert.gate.values, loaded) <= expected_loss(expert.gate.values, "a8w8-int")

`expert.gate.codes` holds codes and scales that must arrive unchanged (INT8, INT4, MX); it is None for BF16 and for
formats that no such use case holds. `holds` says which use cases hold a projection exactly, from its numbers alone.
Malformed checkpoints: generate/malformed.py, generate/malformed_tensors.py and how test_malformed.py plants them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from formats import fixtures
from formats.generate.checkpoint import generate
from formats.generate.recipes import RECIPES
from formats.kinds import KINDS, Kind
from formats.losses import TARGETS, loss, to_bf16
from formats.readings.experts import Layer, Projection
from formats.readings.layer import read_layer
from formats.readings.numbers import F64
from formats.readings.store import Store

LayerName = int | str


@dataclass(frozen=True)
class Case:
    """One checkpoint.

    Attributes:
        name: folder of a fixture without __s0, or name of a recipe.
        format: stable name of the format of the routed experts.
        kind: of their numbers, a key of KINDS (exact and lossy use cases, condition).
        answer: under profile none and without consent: exact, consent or refused.
        refused: why it is refused.
        needs: what else a loader has to answer or to watch.
        exact_here: a use case that is exact for these numbers although it is lossy for the kind.
        generated: written by a recipe; else a fixture of ../shared.
        auto: kind of a decoder layer's numbers -> what `use_case: auto` takes; empty unless the answer is exact.
    """

    name: str
    format: str
    kind: str
    answer: str
    refused: str
    needs: str
    exact_here: str
    generated: bool
    auto: Mapping[str, str]

    def __str__(self) -> str:
        return self.name

    @property
    def facts(self) -> Kind:
        """Exact and lossy use cases of the kind."""
        return KINDS[self.kind]

    @property
    def exact(self) -> frozenset[str]:
        """Use cases that hold the routed experts' numbers of this checkpoint exactly."""
        return frozenset(self.facts.exact) | ({self.exact_here} if self.exact_here else frozenset())

    def place(self, root: Path) -> Path:
        """The folder: written below `root` (empty) for a recipe, found below it (../shared) for a fixture."""
        if self.generated:
            return generate(RECIPES[self.name], root / self.name).folder
        return root / "fixtures" / f"{self.name}__s0"

    def layouts(self, folder: Path) -> dict[LayerName, str]:
        """MoE layer -> reading; draft layers last."""
        if not self.generated:
            row = fixtures.BY_FOLDER[self.name]
            return dict.fromkeys(row.layers, row.format)
        recipe, store = RECIPES[self.name], Store.open(folder)
        count = store.text_config["num_hidden_layers"] - recipe.family.first
        first = recipe.family.first
        found: dict[LayerName, str] = {
            first + i: recipe.layout or recipe.mixed.get(i, recipe.scheme).layout for i in range(count)
        }
        if recipe.draft is not None:
            number: LayerName = first + count if "{}" in recipe.family.draft else recipe.family.draft.strip(".")
            found[number] = recipe.draft.layout
        return found

    def drafts(self, folder: Path) -> set[LayerName]:
        """Layers that only a draft (MTP) model loads."""
        if not self.generated:
            return set(fixtures.BY_FOLDER[self.name].draft)
        return set(list(self.layouts(folder))[-1:]) if RECIPES[self.name].draft is not None else set()

    def kind_of(self, folder: Path, layer: LayerName) -> str:
        """Kind of the numbers of one layer's routed experts."""
        if not self.generated:
            return self.kind
        recipe = RECIPES[self.name]
        if layer in self.drafts(folder) and recipe.draft is not None:
            return recipe.draft.kind
        return recipe.mixed.get(int(layer) - recipe.family.first, recipe.scheme).kind

    def expected(self, folder: Path) -> dict[LayerName, Layer]:
        """Every MoE layer by the independent readings, shared experts included."""
        store = Store.open(folder)
        shared = self.shared_format
        return {layer: read_layer(store, layer, layout, shared) for layer, layout in self.layouts(folder).items()}

    @property
    def shared_format(self) -> str | None:
        """Reading of the shared expert, None where there is none."""
        if not self.generated:
            return fixtures.BY_FOLDER[self.name].shared
        shared = RECIPES[self.name].shared
        return shared.layout if shared is not None else None


def holds(use_case: str, projection: Projection) -> bool:
    """Whether a use case holds these numbers exactly, judged from the numbers themselves."""
    kind = projection.codes.kind if projection.codes is not None else ""
    if use_case == "a16w16":
        return bool(np.array_equal(to_bf16(projection.values), projection.values))
    kinds = {
        "a8w8-int": ("int8", "int4"),
        "a8w4-int": ("int4",),
        "a8w8-fp": ("e4m3", "e2m1"),
        "a8w4-fp": ("e2m1",),
        "a4w4-fp": ("e2m1",),
    }
    return kind in kinds[use_case]


def expected_loss(values: F64, use_case: str) -> float:
    """Loss in per cent of a plain conversion of these values: what a loader's conversion may lose, give or take its
    own choice of the MX exponent's rule."""
    return loss(values, TARGETS[use_case](values))


def _of_fixture(row: fixtures.Fixture) -> Case:
    auto = {row.kind: row.auto} if row.answer == "exact" else {}
    return Case(row.folder, row.format, row.kind, row.answer, row.refused, "", row.exact_here, False, auto)


def _of_recipe(name: str) -> Case:
    recipe = RECIPES[name]
    return Case(
        name, recipe.format, recipe.kind, recipe.answer, recipe.refused, recipe.needs, recipe.exact_here, True,
        recipe.auto)  # fmt: skip


FIXTURES = tuple(_of_fixture(row) for row in fixtures.FIXTURES)
"""Every folder of ../shared/fixtures."""

GENERATED = tuple(_of_recipe(name) for name in RECIPES)
"""Every recipe."""

BY_NAME = {case.name: case for case in FIXTURES + GENERATED}
