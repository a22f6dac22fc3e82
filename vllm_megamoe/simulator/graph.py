"""Capture and replay of graphs on the simulated NPU: what a step does, done again at the same addresses.

A real capture runs no kernel and keeps a list of them; a replay runs the list, and no Python. Here a capture runs each
operation once and notes it: with the tensors that it read, and where its results lie. A replay does them again on
that memory. What a device cannot do in a capture is an error here:

- a read of the host's: item, bool, tolist, numpy, cpu, shapes that hang on values (nonzero, a boolean index);
- a tensor made from numbers of the host's, which is a copy that waits;
- memory of the graph's that somebody keeps: the next graph writes into it. `NPUGraph.kept` names it.

Sources: torch_npu follows torch.cuda.graph in names and order (capture_begin, capture_end, replay); for the limits of a
capture its documents refer to torch's about CUDA graphs.
"""

import gc
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

_TO_HOST = frozenset(
    {
        *(torch.Tensor.item, torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.cpu, torch.Tensor.__array__),
        *(torch.Tensor.__bool__, torch.Tensor.__int__, torch.Tensor.__float__, torch.Tensor.__index__),
    }
)
_FROM_HOST = frozenset({torch.tensor, torch.as_tensor, torch.from_numpy, torch.frombuffer})
_ON_VALUES = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)
_CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
_WHOLE = ("aten", "prims", "prim", "c10d", "_c10d_functional")
"""Namespaces whose operations are kernels; others are Python that calls kernels."""


class NPUGraph:
    """`torch.npu.NPUGraph`."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        del arguments, options
        self._tasks: list[_Task] = []
        self._recorder: _Recorder | None = None
        self._made: list[weakref.ref[Tensor]] = []

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
        """From here on operations are noted.

        Raises:
            RuntimeError: another capture is open.
        """
        global _open
        del pool, capture_error_mode
        if _open is not None:
            raise RuntimeError("[simulated] a capture is open already; expected its end before the next begins")
        self._tasks.clear()
        self._recorder = _open = _Recorder(self._tasks)
        self._recorder.begin()

    def capture_end(self) -> None:
        """The list is whole."""
        global _open
        if self._recorder is not None:
            self._recorder.end()
            self._made = self._recorder.made
        self._recorder = _open = None

    @property
    def kept(self) -> list[Tensor]:
        """Tensors in the graph's memory that somebody still holds, the results of what was captured among them."""
        gc.collect()
        return [tensor for made in self._made if (tensor := made()) is not None]

    def replay(self) -> None:
        """Do it all again, on the same memory."""
        for task in self._tasks:
            task.run()

    def reset(self) -> None:
        """Forget it."""
        self._tasks.clear()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *arguments, **options: None


class graph:
    """`torch.npu.graph(graph, pool=...)`."""

    def __init__(self, npu_graph: NPUGraph, pool: Any = None, **options: Any) -> None:
        self.npu_graph, self._pool = npu_graph, pool
        del options

    def __enter__(self) -> None:
        self.npu_graph.capture_begin(pool=self._pool)

    def __exit__(self, *reason: object) -> None:
        self.npu_graph.capture_end()


_open: "_Recorder | None" = None


def is_capturing() -> bool:
    """`torch.npu.is_current_stream_capturing`."""
    return _open is not None


def watching() -> AbstractContextManager[Any]:
    """While a graph is captured, the look at calls that reach no dispatcher, for a kernel in Python: torch has switched
    its function modes off while it handles the call that leads there."""
    return nullcontext() if _open is None or _open.paused else _Functions(_open)


def as_one_kernel(kernel: Callable[..., Any], *arguments: Any) -> Any:
    """Run what is one kernel on the device, and is Python here: a capture notes it as one operation."""
    recorder = _open
    if recorder is None or recorder.paused:
        return kernel(*arguments)
    recorder.paused = True
    try:
        result = kernel(*arguments)
        recorder.note(kernel, arguments, {}, result)
    finally:
        recorder.paused = False
    return result


@dataclass(slots=True)
class _Task:
    """One operation, with tensors that share memory with those that it had; its results go to where they were."""

    function: Callable[..., Any]
    arguments: Sequence[Any]
    options: Mapping[str, Any]
    results: list[Tensor]

    def run(self) -> None:
        with torch.inference_mode():
            made = self.function(*self.arguments, **self.options)
            _wait(made)
            for place, value in zip(self.results, _tensors(made), strict=True):
                if place.data_ptr() != value.data_ptr():
                    place.copy_(value)


class _Recorder:
    """One open capture."""

    def __init__(self, tasks: list[_Task]) -> None:
        self.paused = False
        self.made: list[weakref.ref[Tensor]] = []
        self._tasks = tasks
        self._aliases: Any = WeakTensorKeyDictionary()
        self._modes = (_Operations(self), _Functions(self))

    def begin(self) -> None:
        for mode in self._modes:
            mode.__enter__()  # type: ignore[no-untyped-call]

    def end(self) -> None:
        for mode in reversed(self._modes):
            mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def note(
        self, function: Callable[..., Any], arguments: Sequence[Any], options: Mapping[str, Any], result: Any
    ) -> None:
        """Keep an operation that has run."""
        given = _tensors([arguments, options])
        storages = {_place(tensor) for tensor in given}
        results = _tensors(result)
        new = [tensor for tensor in results if not any(tensor is each for each in given)]
        mapped = self._mapped(list(arguments)), self._mapped(dict(options))
        for tensor in new:
            self._aliases[tensor] = tensor.detach()
            self.made.append(weakref.ref(tensor))
        schema = getattr(function, "_schema", None)
        writes = schema is None or schema.is_mutable or function.namespace not in ("aten", "prims")  # type: ignore[attr-defined]
        if writes or any(_place(tensor) not in storages for tensor in results):
            self._tasks.append(_Task(function, *mapped, [self._mapped(tensor) for tensor in results]))

    def _mapped(self, value: Any) -> Any:
        """The same with our own tensors on the same memory, so that a capture keeps nobody's tensor alive."""
        if isinstance(value, Tensor):
            return self._aliases.get(value, value)
        if isinstance(value, (list, tuple)):
            return type(value)(self._mapped(each) for each in value)
        if isinstance(value, dict):
            return {key: self._mapped(each) for key, each in value.items()}
        if is_dataclass(value) and not isinstance(value, type):
            changed = {f.name: self._mapped(getattr(value, f.name)) for f in fields(value) if f.init}
            return replace(value, **changed)
        return value


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every operation of torch's dispatcher."""

    def __init__(self, recorder: _Recorder) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._recorder = recorder

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        del types
        options = dict(kwargs or {})
        if self._recorder.paused:
            return func(*args, **options)
        if any(tag in func.tags for tag in _ON_VALUES) or _has_mask(func, args):
            raise _refused(str(func))
        with self:
            if func.namespace not in _WHOLE:
                return func.redispatch(_CPU, *args, **options)
            made = func.decompose(*args, **options)
        if made is NotImplemented:
            made = func(*args, **options)
            self._recorder.note(func, args, options, made)
        return made


class _Functions(TorchFunctionMode):
    """Sees calls that reach no dispatcher where all memory is the host's."""

    def __init__(self, recorder: _Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        del types
        options = dict(kwargs or {})
        if not self._recorder.paused and (func in _TO_HOST or func in _FROM_HOST or _goes_to_cpu(func, args, options)):
            raise _refused(getattr(func, "__name__", str(func)))
        return func(*args, **options)


def _goes_to_cpu(func: Any, args: Sequence[Any], options: Mapping[str, Any]) -> bool:
    if func is not torch.Tensor.to:
        return False
    return any(
        str(each) == "cpu" for each in (*args[1:], options.get("device")) if isinstance(each, str | torch.device)
    )


def _has_mask(func: Any, args: Sequence[Any]) -> bool:
    """Whether values of a boolean index decide a shape."""
    if str(func).split(".")[1] not in ("index", "index_put", "index_put_"):
        return False
    return any(isinstance(each, Tensor) and each.dtype in (torch.bool, torch.uint8) for each in args[1])


def _refused(what: str) -> RuntimeError:
    return RuntimeError(
        f"[simulated] {what} while a graph is captured: the host would wait for the device, which runs nothing now; "
        "expected operations on the device alone (torch_npu: operation not permitted when stream is capturing)"
    )


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [tensor for each in value for tensor in _tensors(each)]
    if isinstance(value, dict):
        return _tensors(list(value.values()))
    if is_dataclass(value) and not isinstance(value, type):
        return _tensors([getattr(value, field.name) for field in fields(value)])
    return []


def _place(tensor: Tensor) -> int:
    """Where a tensor's memory begins."""
    from vllm_megamoe.layout.formatted import inner

    return inner(tensor).untyped_storage().data_ptr()


def _wait(result: Any) -> None:
    """For a collective operation's end."""
    for each in result if isinstance(result, tuple) else ():
        if isinstance(each, torch.ScriptObject) and "Work" in str(each._type()):
            torch._C._distributed_c10d.Work.unbox(each).wait()
