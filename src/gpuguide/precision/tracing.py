"""Traces of a run: the operation that made the first infinity or NaN, and the dtype of every operation.

PyTorch hands every operation to a *dispatch mode* before it computes it, after autograd and autocast have done their
part. So a mode sees what really runs, forward and backward: the casts that autocast inserts, and the results. Hooks on
the modules say where in the model that is. A traced run waits after every operation and is slow: it is for finding out.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.module_tracker import ModuleTracker

UNFILLED = ("aten.empty", "aten.new_empty", "aten.empty_like", "aten.empty_strided", "aten.new_empty_strided")
"""Operations whose result is whatever was in memory"""
MOVES = (
    *("aten.view", "aten._unsafe_view", "aten.t.", "aten.transpose", "aten.permute", "aten.detach", "aten.alias"),
    *("aten.expand", "aten.unsqueeze", "aten.squeeze", "aten.slice", "aten.select", "aten.split"),
)
"""Operations that compute nothing: another look at the same numbers"""


@dataclass(frozen=True)
class NonFinite:
    """Origin of an infinity or a NaN."""

    kind: Literal["infinity", "NaN"]
    operation: str
    """Name of the operation in PyTorch, ``"aten.exp.default"``; ``"given"`` if it was there before anything ran"""
    module: str
    """Path of the module that ran it, ``"blocks.3.mlp"``; of what was given, the name of the parameter or buffer; empty
    outside of the model"""
    backward: bool
    """Whether it was in the backward pass"""
    dtype: torch.dtype
    count: int
    """Values of this kind in the result"""
    values: int
    """Values in the result"""
    largest_input: float
    """Largest finite magnitude among its inputs: 300 explains an infinity of exp, 1e-30 one of a division"""

    def __str__(self) -> str:
        """Say all of it in a sentence."""
        where = self.module or "outside of the model"
        if self.operation == "given":
            return f"{where} held {self.kind} in {self.count} of {self.values} values before anything ran."
        turn = "backward pass" if self.backward else "forward pass"
        return (
            f"{self.operation} in {where} ({turn}, {self.dtype}) made {self.kind} in {self.count} of {self.values} "
            f"values; the largest finite number that it was given is {self.largest_input:.3g}."
        )


def trace_nonfinite(model: nn.Module, run: Callable[[], Any]) -> list[NonFinite]:
    """Run a function, and return what made infinities and NaN, in the order in which it happened.

    Listed are operations whose result has an infinity or NaN while none of what they were given had one, or has a NaN
    while they were given infinities only. What is written into a mask on purpose, as in ``masked_fill(mask, -inf)``,
    was given. So the first entry is where it began: mostly an infinity, before the NaN that one has noticed.

    Parameters
    ----------
    model : torch.nn.Module
        Whose modules are named. Its parameters and buffers are looked at first, so that a loss that is NaN from the
        start leads to the weight that was.
    run : callable
        What to trace, for example ``lambda: loss(model(inputs), targets).backward()``.

    Returns
    -------
    list of NonFinite
        Empty if all was finite.
    """
    mode = _FindNonFinite(model)
    with mode.tracker, mode:
        run()
    return mode.found


@dataclass(frozen=True)
class Ran:
    """An operation with the formats that it ran in."""

    operation: str
    module: str
    backward: bool
    inputs: tuple[torch.dtype, ...]
    """Dtypes of its floating-point inputs"""
    outputs: tuple[torch.dtype, ...]
    times: int


def trace_dtypes(model: nn.Module, run: Callable[[], Any]) -> list[Ran]:
    """Run a function, and return which operations ran, where and in which formats, in the order of their first run.

    Operations without floating-point numbers, and those that only look at numbers in another way, are left out. A cast
    is ``aten._to_copy.default``; that autocast keeps the 16-bit copy of a weight until it ends shows in how many there
    are.

    Parameters
    ----------
    model : torch.nn.Module
        Whose modules are named.
    run : callable
        What to trace, mostly a forward pass within ``autocast("fp16", device)``.
    """
    mode = _CountDtypes(model)
    with mode.tracker, mode:
        run()
    return [Ran(*key, times) for key, times in mode.counts.items()]


class _Traced(TorchDispatchMode):
    """A mode that knows in which module it is."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.tracker = ModuleTracker()
        self.root = type(model).__name__

    def where(self) -> str:
        """Return the innermost module's path, without the name of the model."""
        paths = [path for path in self.tracker.parents if path.startswith(self.root)]
        innermost = max(paths, key=lambda path: path.count("."), default="")
        return innermost.removeprefix(self.root).removeprefix(".") or (innermost and self.root)


class _FindNonFinite(_Traced):
    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.found: list[NonFinite] = []
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            if kind := _kind(tensor):
                self._note(kind, "given", name, [tensor], [])

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation and look at what it was given and what it made."""
        given = _floats((args, kwargs))
        before = {_kind(each) for each in given} | {_kind_of_number(each) for each in tree_leaves((args, kwargs))}
        largest = [_block_amax(each) for each in given]  # now, for an operation may write over what it was given
        result = func(*args, **(kwargs or {}))
        made = [] if str(func).startswith(UNFILLED) else _floats(result)
        kinds = {_kind(each) for each in made}
        if "NaN" in kinds and "NaN" not in before:
            self._note("NaN", str(func), self.where(), made, largest)
        elif "infinity" in kinds and not before & {"infinity", "NaN"}:
            self._note("infinity", str(func), self.where(), made, largest)
        return result

    def _note(
        self,
        kind: Literal["infinity", "NaN"],
        operation: str,
        module: str,
        made: list[torch.Tensor],
        largest: list[float],
    ) -> None:
        test = torch.isnan if kind == "NaN" else torch.isinf
        count = sum(int(test(each).sum()) for each in made)
        self.found.append(
            NonFinite(
                kind=kind,
                operation=operation,
                module=module,
                backward=self.tracker.is_bw,
                dtype=made[0].dtype,
                count=count,
                values=sum(each.numel() for each in made),
                largest_input=max(largest, default=0.0),
            )
        )


class _CountDtypes(_Traced):
    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.counts: Counter[tuple[str, str, bool, tuple[torch.dtype, ...], tuple[torch.dtype, ...]]] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation and note its formats."""
        given = tuple(each.dtype for each in _floats((args, kwargs)))
        result = func(*args, **(kwargs or {}))
        made = tuple(each.dtype for each in _floats(result))
        if (given or made) and not str(func).startswith((*MOVES, *UNFILLED)):
            self.counts[(str(func), self.where(), self.tracker.is_bw, given, made)] += 1
        return result


def _floats(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]


def _kind(tensor: torch.Tensor) -> Literal["infinity", "NaN"] | None:
    """Return the worst that a tensor holds."""
    if not tensor.is_floating_point() or bool(tensor.isfinite().all()):
        return None
    return "NaN" if bool(tensor.isnan().any()) else "infinity"


def _kind_of_number(leaf: Any) -> Literal["infinity", "NaN"] | None:
    if not isinstance(leaf, float) or math.isfinite(leaf):
        return None
    return "NaN" if math.isnan(leaf) else "infinity"


def _block_amax(tensor: torch.Tensor) -> float:
    finite = tensor.detach()[tensor.isfinite()].abs()
    return float(finite.max()) if finite.numel() else 0.0
