"""A linear whose tensors are collected as the checkpoint has them, then read, and given to vLLM as plain weights.

vLLM's own loaders call the loader of each parameter with the part of the layer that a checkpoint's projection is
(`q`, 0, nothing), and cut a whole tensor for the rank. So a parameter for each stored tensor (`weight_scale`, ...)
only collects; once a projection is complete it is read, and its numbers go to the loader that vLLM gave the weight,
with the same part. Which projections are fused and what a rank owns stays vLLM's business.

A shared MLP that the operator runs is not handed on: it is kept whole and exact, on every rank.
"""

import weakref
from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
from torch import Tensor
from vllm.model_executor.layers.linear import (
    WEIGHT_LOADER_V2_SUPPORTED,
    RowParallelLinear,
    UnquantizedLinearMethod,
)
from vllm.model_executor.model_loader.reload import record_metadata_for_reloading

from vllm_megamoe.checkpoint.stored.integers import MsStatic
from vllm_megamoe.checkpoint.stored.matrix import DenseMatrix, Matrix, own_memory, values_of
from vllm_megamoe.checkpoint.stored.part import read_projection
from vllm_megamoe.errors import CheckpointError
from vllm_megamoe.lanes.expert_loading import Numberless
from vllm_megamoe.lanes.projections import Projection, rows_of

_BY_WORD = ("q", "k", "v", "index_q", "index_k")
"""vLLM's words for parts of a fused attention layer, in the order of its `output_sizes`."""

Part = int | str | tuple[int, ...] | None
"""What vLLM's loaders call the part of a layer that a tensor belongs to; None is all of it."""


def _nothing() -> None:
    pass


class Collected(UnquantizedLinearMethod):  # type: ignore[misc]
    """See the module.

    Args:
        projections: of the layer, in vLLM's order; one where nothing is fused.
        kept: asked with the layer once the model is built: whether its numbers go to the operator alone.
        processed: called when the layer is ready.
    """

    def __init__(
        self, projections: tuple[Projection, ...], kept: Callable[[Any], bool], processed: Callable[[], None] = _nothing
    ) -> None:
        super().__init__()
        self._projections = projections
        self._kept = kept
        self._processed = processed
        self._tensors: dict[Part, dict[str, Tensor]] = {}
        self._arrived: dict[Part, Matrix | None] = {}
        self._bias: dict[Part, Tensor] = {}
        self._arrived_again: Callable[[], None] | None = None

    def create_weights(
        self,
        layer: Any,
        input_size_per_partition: int,
        output_partition_sizes: list[int],
        input_size: int,
        output_size: int,
        params_dtype: torch.dtype,
        **extra_weight_attrs: Any,
    ) -> None:
        """Register vLLM's `weight`, and a parameter of one number for every other tensor that may arrive."""
        self._columns = input_size
        self._rows = rows_of(layer, output_size)
        self._cut: Callable[..., None] = extra_weight_attrs.pop("weight_loader")
        self._owner: Callable[[], Any] = weakref.ref(layer)
        super().create_weights(
            layer,
            input_size_per_partition,
            output_partition_sizes,
            input_size,
            output_size,
            params_dtype,
            weight_loader=self._collector("weight"),
            **extra_weight_attrs,
        )
        # A bias is vLLM's own parameter, where the layer has one.
        parts = {part.name for projection in self._projections for part in projection.stored.parts}
        self._extra = sorted(parts - {"weight", "bias"})
        for name in self._extra:
            one = torch.nn.Parameter(torch.empty(1, dtype=params_dtype), requires_grad=False)
            one.weight_loader = self._collector(name)  # type: ignore[attr-defined]
            layer.register_parameter(name, one)

    def _collector(self, name: str) -> Callable[..., None]:
        """The loader of one parameter, with the argument names of vLLM's own."""

        def collect(param: Tensor, loaded_weight: Tensor, loaded_shard_id: Part = None) -> None:
            if name != "weight":
                # vLLM counts copied numbers when it loads again, to know which layers were touched.
                param.data.copy_(torch.zeros_like(param.data))
            self._take(name, loaded_weight, loaded_shard_id)

        return collect

    def _take(self, name: str, tensor: Tensor, part: Part) -> None:
        held = self._tensors.setdefault(part, {})
        held[name] = tensor
        if all(each.name in held for each in self._projection(part).stored.parts if each.name != "bias"):
            self._read(part)
        else:
            # The file's memory may be used for its next tensor.
            held[name] = tensor.clone()

    def _read(self, part: Part) -> None:
        """Read a projection whose tensors are there, and hand it on."""
        projection, layer = self._projection(part), self._owner()
        tensors = self._tensors.pop(part)
        rows = sum(self._rows[index] for index in self._indices(part))
        matrix = read_projection(projection.stored, tensors, rows, self._columns, projection.name)
        if isinstance(projection.stored, MsStatic):
            self._bias[part] = projection.stored.bias(tensors)
        if self._kept(layer):
            self._arrived[part] = own_memory(matrix)
            if self._arrived_again is not None:
                self._arrived_again()
            return
        self._arrived[part] = None
        self._hand_on(self._cut, layer.weight, values_of(matrix), part)

    @staticmethod
    def _hand_on(loader: Callable[..., None], param: Tensor, values: Tensor, part: Part) -> None:
        whole = values.to(param.dtype)
        if part is None:
            loader(param, whole)
        else:
            loader(param, whole, part)

    def process_weights_after_loading(self, layer: Any) -> None:
        """Finish what came without its optional tensors, then what vLLM does with a weight.

        Raises:
            CheckpointError: a projection is missing, or a tensor of it.
        """
        self.finish()
        self._check_all_arrived()
        for name in self._extra:
            delattr(layer, name)
        self._add_biases(layer)
        self._processed()
        if not self._kept(layer):
            self._arrived.clear()
            super().process_weights_after_loading(layer)

    def _check_all_arrived(self) -> None:
        absent = self.missing()
        if absent and not is_dummy():
            raise CheckpointError(
                f"{', '.join(absent)}: no weight has arrived; expected the tensors of each. Copy the checkpoint anew; "
                "if it is whole, its names are not those of the model."
            )

    def _add_biases(self, layer: Any) -> None:
        """Biases that a static quantisation keeps among its integers go where vLLM adds one, or beside the weight."""
        target = layer.bias
        if target is None and any(bool(bias.any()) for bias in self._bias.values()):
            size = sum(layer.output_partition_sizes)
            target = torch.nn.Parameter(torch.zeros(size, dtype=layer.params_dtype), requires_grad=False)
            target.output_dim = 0  # type: ignore[attr-defined]
            layer.register_parameter("static_bias", target)
        if target is None:
            self._bias.clear()
        for part, bias in self._bias.items():
            self._hand_on(layer.weight_loader, target, bias, part)
        self._bias.clear()

    def apply(self, layer: Any, x: Tensor, bias: Tensor | None = None) -> Tensor:
        own = getattr(layer, "static_bias", None)
        # Of ranks whose outputs are added up, one adds the bias.
        if own is not None and not (isinstance(layer, RowParallelLinear) and layer.tp_rank > 0):
            bias = own
        y: Tensor = super().apply(layer, x, bias)
        return y

    def taken(self, layer: Any) -> list[Matrix]:
        """The kept projections in vLLM's order, once: nothing is held here afterwards.

        For `--load-format dummy` they are what vLLM filled the weight with, of a rank's size cut to the whole.
        """
        if not self._arrived and is_dummy():
            ranks = (1, layer.tp_size) if isinstance(layer, RowParallelLinear) else (layer.tp_size, 1)
            return [DenseMatrix(layer.weight.data.repeat(*ranks))]
        kept = sorted(self._arrived.items(), key=lambda item: self._indices(item[0]))
        self._arrived = {}
        return [matrix for _, matrix in kept if matrix is not None]

    def collect_again(self, layer: Any, arrived: Callable[[], None]) -> None:
        """Let the layer's parameters take tensors once more; they are kept for `taken`.

        Args:
            layer: of this method, whose weight has gone to the operator.
            arrived: called when the layer is whole.
        """
        self._kept, self._arrived_again = _always, arrived
        for name in ("weight", *self._extra):
            layer.register_parameter(name, Numberless(MethodType(_take_again, layer), name))
        # So that vLLM's own reload finds these parameters and not the first ones.
        record_metadata_for_reloading(layer)

    @property
    def begun(self) -> bool:
        """Whether something has come that nobody has taken."""
        return bool(self._tensors or self._arrived)

    def whole(self) -> bool:
        """Whether all projections are read."""
        return not self._tensors and not self.missing()

    def complete(self) -> bool:
        """Whether all projections would be read if their optional tensors did not come any more."""
        required = {part: self._projection(part).stored.parts for part in self._tensors}
        lacks = any(
            each.required and each.name not in self._tensors[part] for part, parts in required.items() for each in parts
        )
        coming = {index for part in self._tensors for index in self._indices(part)}
        found = {index for part in self._arrived for index in self._indices(part)}
        return not lacks and len(coming | found) == len(self._rows)

    def missing(self) -> list[str]:
        """Names of the projections that are not read yet."""
        found = {index for part in self._arrived for index in self._indices(part)}
        return [self._name(index) for index in range(len(self._rows)) if index not in found]

    def finish(self) -> None:
        """Read what came without its optional tensors.

        Raises:
            CheckpointError: a projection lacks tensors.
        """
        for part in list(self._tensors):
            self._read(part)

    def drop(self) -> None:
        """Forget what nobody has taken."""
        self._tensors.clear()
        self._arrived.clear()

    def _indices(self, part: Part) -> tuple[int, ...]:
        """The entries of the layer's `output_sizes` that a part is."""
        if part is None:
            return tuple(range(len(self._rows)))
        if isinstance(part, tuple):
            return part
        return (_BY_WORD.index(part) if isinstance(part, str) else part,)

    def _projection(self, part: Part) -> Projection:
        """The checkpoint's projection behind a part.

        Raises:
            CheckpointError: the file has fused projections that it describes as stored in different ways.
        """
        indices = self._indices(part)
        if len(self._projections) == len(self._rows):
            found = [self._projections[index] for index in indices]
        else:
            found = list(self._projections)
        if any(each.stored != found[0].stored for each in found):
            raise CheckpointError(
                f"{', '.join(each.name for each in found)}: one tensor for projections that are stored in different "
                "ways; expected one way. Correct the description, or quantise again."
            )
        return found[0]

    def _name(self, index: int) -> str:
        one_each = len(self._projections) == len(self._rows)
        return self._projections[index].name if one_each else self._projections[0].name


# vLLM chooses the kind of loader by the method's name; ours has the weight of UnquantizedLinearMethod.
if Collected.__name__ not in WEIGHT_LOADER_V2_SUPPORTED:
    WEIGHT_LOADER_V2_SUPPORTED.append(Collected.__name__)


def _always(layer: Any) -> bool:
    return True


def _take_again(layer: Any, param: Any, loaded_weight: Tensor, loaded_shard_id: Part = None) -> None:
    """The loader of a parameter of `collect_again`."""
    layer.quant_method._take(param.part, loaded_weight, loaded_shard_id)


def is_dummy() -> bool:
    """Whether vLLM fills the parameters with random numbers, so that no tensor arrives (`--load-format dummy`)."""
    from vllm.config import get_current_vllm_config_or_none

    current = get_current_vllm_config_or_none()
    return current is not None and current.load_config.load_format == "dummy"
