"""The package's own format: operands as the device stores them, in plain safetensors, so that loading is a copy.

config.json says

    "quantization_config": {
        "quant_method": "megamoe", "version": 1,
        "layers": {"model.layers.3.mlp.experts": {"use_case": "a8w8-int", "element": "int8", "hidden": 2048,
                   "intermediate_hidden": 768, "source": "bf16"}},
        "source": the section that the source had, for all other layers, or null}

and each expert of such a layer is, beside the names that its family uses,

    ....experts.7.gate_proj.operand, operand_sf, operand_offset    gate and up rows: l1, l1_sf, l1_bias of a call
    ....experts.7.down_proj.operand, operand_sf, operand_offset    l2, l2_sf, l2_bias

Sizes are the operator's, padding included. A formatted operand lies there as its blocks do (docs/layouts.md). A layer
that is not listed is stored as the source had it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from vllm_megamoe.checkpoint.headers import DTYPES
from vllm_megamoe.checkpoint.names import names_of
from vllm_megamoe.checkpoint.stored.matrix import Matrix
from vllm_megamoe.checkpoint.stored.part import Part, anything
from vllm_megamoe.errors import CheckpointError, ConfigError
from vllm_megamoe.experts.canonical import DenseExperts, Experts, IntExperts, Kind, MxExperts
from vllm_megamoe.experts.operands import KINDS, ExpertOperands, from_operands, to_operands
from vllm_megamoe.layout.formatted import FormattedTensor, inner
from vllm_megamoe.numerics.mx import EMAX, GROUP
from vllm_megamoe.profiles.use_cases import UseCase

VERSION = 1

PARTS: Mapping[str, tuple[str, str]] = {
    "l1": ("gate_proj", "operand"),
    "l1_sf": ("gate_proj", "operand_sf"),
    "l1_bias": ("gate_proj", "operand_offset"),
    "l2": ("down_proj", "operand"),
    "l2_sf": ("down_proj", "operand_sf"),
    "l2_bias": ("down_proj", "operand_offset"),
}
"""Field of ExpertOperands -> projection and part in the files."""


@dataclass(frozen=True, slots=True)
class OwnLayer:
    """One layer's entry.

    Attributes:
        use_case: of its operands.
        element: kind of its codes, one of `KINDS[use_case]`.
        hidden, intermediate_hidden: sizes of the operands.
        source: name of the format that it was converted from.
    """

    use_case: UseCase
    element: Kind
    hidden: int
    intermediate_hidden: int
    source: str = ""

    @classmethod
    def listed(cls, section: Mapping[str, Any], name: str) -> "OwnLayer":
        """The entry of a layer.

        Raises:
            ConfigError: another version, or a value that is not what its key promises.
        """
        place = f"config.json: quantization_config.layers[{name!r}]"
        if section.get("version") != VERSION:
            raise ConfigError(
                f"config.json: quantization_config.version = {section.get('version')!r}; expected {VERSION}. Convert "
                "the source again with this version (vllm-megamoe convert), or install the version that wrote it."
            )
        entry = section["layers"].get(name) if isinstance(section["layers"], Mapping) else None
        found = entry if isinstance(entry, Mapping) else {}
        sizes = [found.get("hidden"), found.get("intermediate_hidden")]
        cases = [case for case in UseCase if case.value == found.get("use_case")]
        if not cases or found.get("element") not in KINDS[cases[0]] or not all(type(n) is int and n > 0 for n in sizes):
            raise ConfigError(
                f"{place} = {str(entry)[:120]}; expected use_case, element (its kind of codes), hidden and "
                "intermediate_hidden. Convert the source again."
            )
        return cls(
            cases[0], found["element"], found["hidden"], found["intermediate_hidden"], str(found.get("source", ""))
        )

    @classmethod
    def of_layer(cls, section: Mapping[str, Any], name: str, num_layers: int | None = None) -> "OwnLayer":
        """The entry of a layer that vLLM calls `name`, whichever of its names the files use.

        Raises:
            ConfigError: as `listed`.
        """
        blocks = (one.rpartition(".experts.")[0] + ".experts" for one in names_of(f"{name}.0.gate_proj", num_layers))
        return cls.listed(section, next((block for block in blocks if block in section["layers"]), name))

    @property
    def parts(self) -> tuple[Part, ...]:
        """As of any stored format: what vLLM's loaders look for behind a projection's name."""
        names = dict.fromkeys(PARTS[field][1] for field in self.tensors)
        return tuple(Part(name, tuple(DTYPES.values()), anything) for name in names)

    def read(self, tensors: Mapping[str, Tensor], rows: int, columns: int, where: str) -> Matrix:
        """As of any stored format, but operands are whole experts.

        Raises:
            CheckpointError: always.
        """
        del tensors, rows, columns
        raise CheckpointError(
            f"{where}: operands of {self.use_case} are no matrix of one projection; expected a reader of whole "
            "experts. Report this."
        )

    def entry(self) -> dict[str, Any]:
        """What `listed` reads."""
        return {
            "use_case": self.use_case.value,
            "element": self.element,
            "hidden": self.hidden,
            "intermediate_hidden": self.intermediate_hidden,
            "source": self.source,
        }

    @property
    def template(self) -> ExpertOperands:
        """Operands of an expert of zeros: dtypes, shapes and storage formats of all."""
        return _template(self.use_case, self.element, self.hidden, self.intermediate_hidden)

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Field -> the plain tensor of the template that holds the bytes."""
        held = {field: getattr(self.template, field) for field in PARTS}
        return {field: inner(tensor) for field, tensor in held.items() if tensor is not None}

    def tensors_of(self, operands: ExpertOperands) -> dict[str, Tensor]:
        """Field -> what a file holds, contiguous.

        Raises:
            CheckpointError: the operands are not of this layer.
        """
        found = {field: inner(getattr(operands, field)).contiguous() for field in self.tensors}
        self._check(found, "an expert")
        return found

    def operands_of(self, tensors: Mapping[str, Tensor], where: str) -> ExpertOperands:
        """The inverse: a file's tensors in their storage formats, no byte copied.

        Raises:
            CheckpointError: a tensor is missing, left over, or of another dtype or shape; named after `where`.
        """
        self._check(tensors, where)
        made: dict[str, Tensor] = {}
        for field, tensor in tensors.items():
            like = getattr(self.template, field)
            formatted = isinstance(like, FormattedTensor)
            made[field] = FormattedTensor(tensor, like.acl_format, like.shape) if formatted else tensor
        return replace(self.template, **made)

    def experts_of(self, tensors: Mapping[str, Tensor], hidden: int, intermediate: int, where: str) -> Experts:
        """The canonical expert without padding.

        Raises:
            CheckpointError: as `operands_of`.
        """
        return _cut(from_operands([self.operands_of(tensors, where)], self.use_case), hidden, intermediate)

    def _check(self, tensors: Mapping[str, Tensor], where: str) -> None:
        for field in {**self.tensors, **tensors}:
            name = f"{where}.{'.'.join(PARTS[field])}"
            like, got = self.tensors.get(field), tensors.get(field)
            if like is None or got is None:
                what = "is left over" if like is None else "is missing"
                raise CheckpointError(f"{name} {what}; expected the operands of {self.use_case}. Convert again.")
            if (got.dtype, got.shape) != (like.dtype, like.shape):
                raise CheckpointError(
                    f"{name} is {got.dtype} {list(got.shape)}; expected {like.dtype} {list(like.shape)} for "
                    f"{self.use_case} of hidden {self.hidden} and intermediate_hidden {self.intermediate_hidden}. "
                    "Convert again."
                )


@cache
def _template(use_case: UseCase, kind: Kind, hidden: int, intermediate: int) -> ExpertOperands:
    (made,) = to_operands(_zeros(kind, hidden, intermediate), use_case)
    return made


def _zeros(kind: Kind, hidden: int, intermediate: int) -> Experts:
    rows, shape2 = 2 * intermediate, (1, hidden, intermediate)
    if kind == "dense":
        return DenseExperts(torch.zeros(1, rows, hidden).bfloat16(), torch.zeros(shape2).bfloat16())
    if kind in ("int8", "int4"):
        codes = torch.zeros(1, rows, hidden, dtype=torch.int8), torch.zeros(shape2, dtype=torch.int8)
        return IntExperts(codes[0], torch.ones(1, rows), codes[1], torch.ones(1, hidden), 8 if kind == "int8" else 4)
    per_byte, elem = 2 if kind == "e2m1" else 1, next(elem for elem in EMAX if elem == kind)
    sizes = (rows, hidden), (hidden, intermediate)
    weights = [torch.zeros(1, n, k // per_byte, dtype=torch.uint8) for n, k in sizes]
    scales = [torch.full((1, n, -(-k // GROUP)), 127, dtype=torch.uint8) for n, k in sizes]
    return MxExperts(weights[0], scales[0], weights[1], scales[1], elem)


def _cut(experts: Experts, hidden: int, intermediate: int) -> Experts:
    """Without the rows and columns that padding added: the inverse of `padded`."""

    def halves(t: Tensor, columns: int) -> Tensor:
        split = t.view(t.shape[0], 2, t.shape[1] // 2, -1)[:, :, :intermediate, :columns]
        return split.reshape(t.shape[0], 2 * intermediate, columns)

    if isinstance(experts, DenseExperts):
        return DenseExperts(halves(experts.w13, hidden), experts.w2[:, :hidden, :intermediate])
    if isinstance(experts, IntExperts):
        scale = halves(experts.w13_scale[..., None], 1)[..., 0]
        w2, w2_scale = experts.w2[:, :hidden, :intermediate], experts.w2_scale[:, :hidden]
        return IntExperts(halves(experts.w13, hidden), scale, w2, w2_scale, experts.bits)
    packed = experts.per_byte
    return MxExperts(
        halves(experts.w13, hidden // packed),
        halves(experts.w13_scale, -(-hidden // GROUP)),
        experts.w2[:, :hidden, : intermediate // packed],
        experts.w2_scale[:, :hidden, : -(-intermediate // GROUP)],
        experts.elem,
    )
