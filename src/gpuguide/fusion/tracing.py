"""What a step dispatches: each operation with the bytes that it reads and writes, its FLOPs, and where the host waits.

A *dispatch mode* sees every operation that PyTorch carries out, those of the backward pass too, on any device. An
operation that only views memory, or allocates it, starts no kernel and is left out. Each other one is taken for one
kernel, which is what most of PyTorch's are in eager mode; a profiler counts exactly (:mod:`gpuguide.fusion.counting`).
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

Kind = Literal["pointwise", "row", "columns", "other"]
"""How a compiler can fuse an operation: with its neighbours; the same, if it keeps a whole row (softmax, layer norm,
sums of rows); only with what comes before (sums over other axes); or not at all (matmuls, attention, sorting)"""

POINTWISE = {
    "_to_copy",
    "copy_",
    "cat",
    "fill_",
    "zero_",
    "embedding",
    "native_dropout",
    "masked_fill_",
    "gather",
    "stack",
    "nll_loss_backward",
}
"""Fusable operations that PyTorch does not tag as pointwise"""
ROWS = {
    "native_layer_norm", "_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data",
    "native_layer_norm_backward", "_fused_rms_norm", "_fused_rms_norm_backward", "logsumexp",
}  # fmt: skip
COLUMNS = {"nll_loss_forward"}
REDUCTIONS = {"sum", "mean", "var", "var_mean", "amax", "amin", "std", "linalg_vector_norm", "prod", "any", "all"}
ALLOCATIONS = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}
OVERWRITTEN = {"copy_", "fill_", "zero_", "normal_", "uniform_", "random_", "bernoulli_", "exponential_"}
"""In-place operations that do not read what they write over"""
INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index", "_unsafe_index_put"}
"""Operations with a list of indices, of which some may be masks"""
WAITING = {
    "_local_scalar_dense": "reads a number (.item(), float(), if)",
    "nonzero": "needs to know how many elements are not zero",
    "masked_select": "needs to know how many elements a mask selects",
    "_unique2": "needs to know how many elements are different",
    "unique_dim": "needs to know how many elements are different",
    "unique_consecutive": "needs to know how many elements are different",
    "equal": "compares on the host (torch.equal)",
}
"""Operations for which the host waits until the GPU has finished all earlier work, and why"""
_LIBRARY = (str(Path(torch.__file__).parent), str(Path(__file__).parent), warnings.__file__)
"""Beginnings of the paths of files whose lines are not the user's"""


Region = tuple[int, int, int]
"""Part of a memory: its number, and where the part begins and how many elements it has, so that views of one tensor,
such as queries, keys and values, are distinguished"""


@dataclass(frozen=True)
class Operation:
    """An operation that starts a kernel."""

    name: str
    """Such as ``add``, without the namespace and the overload"""
    kind: Kind
    reads: dict[Region, int]
    """Bytes that it reads, by the part of memory that they lie in"""
    writes: dict[Region, int]
    """The same of bytes that it writes"""
    flops: int = 0
    """Floating-point operations of matmuls, convolutions and attention; 0 for others"""

    @property
    def moved(self) -> int:
        """Bytes read and written."""
        return sum(self.reads.values()) + sum(self.writes.values())


@dataclass(frozen=True)
class Wait:
    """A place where the host waits for the GPU."""

    line: str
    """File and line of the user's code, such as ``train.py:31``"""
    reason: str


@dataclass
class StepTrace:
    """Operations of a step in their order."""

    operations: list[Operation] = field(default_factory=list)
    waits: list[Wait] = field(default_factory=list)
    kept: set[int] = field(default_factory=set)
    """Numbers of the memories that exist after the step: parameters, results, state"""

    @property
    def moved(self) -> int:
        """Bytes read and written, as if nothing were fused."""
        return sum(operation.moved for operation in self.operations)

    @property
    def flops(self) -> int:
        """Floating-point operations of matmuls, convolutions and attention."""
        return sum(operation.flops for operation in self.operations)


def trace(step: Callable[[], object]) -> StepTrace:
    """Carry out a step and return its operations.

    Parameters
    ----------
    step : callable
        Takes no argument. It really runs: if it trains, it trains one step.
    """
    mode = _Tracer()
    with mode:
        result = step()
    mode.trace.kept = {number for number, memory in mode.memories.items() if not memory.expired()}
    del result
    return mode.trace


class _Tracer(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.trace = StepTrace()
        self.numbers: dict[int, int] = {}
        """Number of each memory by its address, which a later one may have again"""
        self.memories: dict[int, StorageWeakRef] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        name = func.__name__.partition(".")[0]
        inputs = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if (reason := _why_waits(func, name, args, kwargs, out)) is not None:
            self.trace.waits.append(Wait(user_line(), reason))
        before = {_address(tensor) for tensor in inputs}
        written = list(_written(func, args, kwargs))
        fresh = [tensor for tensor in _tensors(out) if _address(tensor) not in before]
        for tensor in inputs:
            self._number(tensor)
        for tensor in fresh:
            self._number(tensor, fresh=True)
        if name in ALLOCATIONS or not (fresh or written):
            return out
        read = inputs if name not in OVERWRITTEN else [each for each in inputs if all(each is not w for w in written)]
        flops = flop_registry.get(_on_a_gpu(func._overloadpacket))
        self.trace.operations.append(
            Operation(
                name,
                _kind(func, name, args, kwargs, flops is not None),
                self._bytes(read),
                self._bytes([*fresh, *written]),
                _flops(flops, func, args, kwargs, out) if flops is not None else 0,
            )
        )
        return out

    def _number(self, tensor: torch.Tensor, fresh: bool = False) -> int:
        address = _address(tensor)
        if fresh or address not in self.numbers:
            self.numbers[address] = len(self.memories)
            self.memories[self.numbers[address]] = StorageWeakRef(tensor.untyped_storage())
        return self.numbers[address]

    def _bytes(self, tensors: Iterable[torch.Tensor]) -> dict[Region, int]:
        return {
            (self.numbers[_address(tensor)], int(tensor.storage_offset()), tensor.numel()): _distinct_bytes(tensor)
            for tensor in tensors
        }


def _flops(flops: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> int:
    """Return the FLOPs of an operation. PyTorch 2.11 refuses to count those of attention whose heads share keys."""
    try:
        return int(flops(*args, **kwargs, out_val=out))
    except AssertionError:
        heads = _argument(func, args, kwargs, "query").shape[1]
        names = [argument.name for argument in func._schema.arguments]
        each = [
            torch.empty(value.shape[0], heads, *value.shape[2:], device="meta") if name in ("key", "value") else value
            for name, value in zip(names, args, strict=False)
        ]
        return int(flops(*each, **kwargs, out_val=out))


def _on_a_gpu(packet: Any) -> Any:
    """Return the counterpart of an operation for processors, such as attention, whose FLOPs PyTorch knows."""
    counterpart = getattr(torch.ops.aten, packet.__name__.replace("_for_cpu", ""), packet)
    return counterpart if "_for_cpu" in packet.__name__ else packet


def _tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def _address(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _distinct_bytes(tensor: torch.Tensor) -> int:
    """Return the bytes of a tensor's elements; an expanded dimension has one."""
    count = tensor.element_size()
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        count *= size if stride or not size else 1
    return count


def _written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterable[torch.Tensor]:
    """Yield the tensors that an operation writes into."""
    for number, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield from _tensors(args[number] if number < len(args) else kwargs.get(argument.name))


def _argument(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], name: str) -> Any:
    """Return an argument by the name that the schema gives it, ``None`` if it was left out or does not exist."""
    names = [argument.name for argument in func._schema.arguments]
    values = {**dict(zip(names, args, strict=False)), **kwargs}
    return values.get(name)


def _kind(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], has_flops: bool) -> Kind:
    if has_flops:
        return "other"
    if torch.Tag.pointwise in func.tags or name in POINTWISE or name.startswith("_foreach"):
        return "pointwise"
    if name in ROWS:
        return "row"
    if name in REDUCTIONS:
        dim = _argument(func, args, kwargs, "dim")
        axes = [dim] if isinstance(dim, int) else dim
        return "row" if axes and set(axes) <= {-1, args[0].ndim - 1} else "columns"
    return "columns" if name in COLUMNS else "other"


def _why_waits(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> str | None:
    """Return why the host waits for an operation, or ``None`` if it does not."""
    if name in WAITING:
        return WAITING[name]
    if name in INDEXING:
        masks = [each for each in _tensors(args[1]) if each.dtype in (torch.bool, torch.uint8)]
        return "needs to know how many elements a mask selects" if masks and not _fills(func, args, kwargs) else None
    if name in ("_to_copy", "copy_") and not _argument(func, args, kwargs, "non_blocking"):
        results = _tensors(out)
        if results and not results[0].is_cuda and any(each.is_cuda for each in _tensors(args)):
            return "copies to the host"
    return None


def _fills(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether a number of the host is written where a mask is true, as by ``x[mask] = 0``, which needs no count.

    Source: PyTorch, ``canDispatchToMaskedFill`` in ATen.
    """
    value = _argument(func, args, kwargs, "values")
    accumulates = _argument(func, args, kwargs, "accumulate")
    is_number = value is not None and value.numel() == 1 and value.device.type == "cpu"
    return is_number and not accumulates and len(_tensors(args[1])) == 1


def user_line() -> str:
    """Return file and line of the innermost frame that is the user's: neither PyTorch's nor this package's."""
    frame: FrameType | None = sys._getframe(1)
    installed = None
    while frame is not None:
        path = frame.f_code.co_filename
        if not path.startswith((*_LIBRARY, "<frozen")):
            line = f"{Path(path).name}:{frame.f_lineno}"
            if "site-packages" not in path:
                return line
            installed = installed or line
        frame = frame.f_back
    return installed or "the backward pass"
