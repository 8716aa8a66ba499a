"""The purpose of each allocation of a history, such as a weight or an activation, found from frames, lifetime and size.

Frames alone do not suffice, because the backward pass runs in a thread of the autograd engine, where there are no
Python functions. So three properties of each allocation are used.

* The phase in which it was made: the optimizer's step (a frame of an optimizer's file), the backward pass (no frames,
  or those of code that it calls), or else the forward pass.
* Its lifetime: over the whole history, from the forward to the backward pass, or within an operation.
* Its size: a gradient is as large as its weight, and the tensors of the loss are as large as the logits.
"""

from __future__ import annotations

import functools
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpuguide.training_memory.snapshot import Allocation, Frame, History

KINDS: Mapping[str, str] = {
    "weight": "weights",
    "copy": "copies",
    "gradient": "gradients",
    "state": "optimizer",
    "activation": "activations",
    "loss": "logits",
    "temporary": "temporary",
    "workspace": "workspace",
    "unnamed": "unnamed",
}
"""Purposes of allocations, and the part of :mod:`gpuguide.costs.memory` that counts each"""
SMALL = 2**16
"""Bytes below which an allocation, such as a counter or a loss, is named in no sentence"""
WORKSPACES = frozenset({8_519_680, 33_554_432, 33_562_624})
"""Sizes of cuBLAS's workspaces on GPUs before Hopper, and from Hopper upwards"""
LOSS_NAMES = frozenset({"cross_entropy", "nll_loss", "log_softmax", "linear_cross_entropy", "ForCausalLMLoss"})
BACKWARD_NAMES = frozenset(
    {"unpack_hook", "recompute_fn", "_backward_impl", "backward_fn", "_engine_run_backward", "_make_grads"}
)
FEWEST_OF_LAYERS = 5
"""Tensors of one size before the first loss that are those of layers: of the logits there are fewer copies"""
CALLS = frozenset({"_call_impl", "_wrapped_call_impl", "forward"})
"""Functions through which modules are called"""


# --- files -------------------------------------------------------------------------------------------------------

OPTIMIZER_FILES = re.compile(
    r"/(torch|torchao|bitsandbytes|apex)/optim(izers)?/|/flashoptim/|/gpuguide/training_memory/eight_bit"
)
PYTORCH_FILES = re.compile(
    r"/(site|dist)-packages/torch/|/torchinductor_[^/]*/"
    r"|/torch/(_\w+|amp|ao|autograd|compiler|cuda|distributed|fx|library|nn|ops|optim|utils|functional\.py)(/|\.py|$)"
)
"""Files of PyTorch as it is installed, as it lies in its own repository, and as its compiler writes them"""
LIBRARY_FILES = re.compile(r"/(site|dist)-packages/|/lib(64)?/python\d[\d.]*t?/|/python[\d.]*/lib/|/python\d+\.zip/")
"""Files of installed packages and of Python itself, in lower case"""
GENERATED = ("<frozen ", "<string>", "<eval_with_key>", "<attrs ", "<__array")
"""Beginnings of what stands in place of a file where code is generated; a cell of a notebook is no such code"""


def path_of(filename: str) -> str:
    """Return a file's path with slashes, as on Linux, and one in front, so that folders are found in any of them."""
    return "/" + filename.replace("\\", "/").lstrip("/")


@functools.lru_cache(maxsize=2**16)
def is_python(filename: str) -> bool:
    """Return whether a file is Python's: a file of C++ is not, and generated code and cells of notebooks are."""
    return filename.endswith(".py") or filename.startswith("<")


@functools.lru_cache(maxsize=2**16)
def is_of_optimizer(filename: str) -> bool:
    """Return whether a file is an optimizer's. The ``step`` of any optimizer is called through PyTorch's own file."""
    return OPTIMIZER_FILES.search(path_of(filename)) is not None


@functools.lru_cache(maxsize=2**16)
def is_of_pytorch(filename: str) -> bool:
    """Return whether a file is PyTorch's, or written by its compiler."""
    return PYTORCH_FILES.search(path_of(filename)) is not None


@functools.lru_cache(maxsize=2**16)
def is_of_library(filename: str) -> bool:
    """Return whether a file is PyTorch's, an installed package's or Python's, or its code is generated."""
    in_library = LIBRARY_FILES.search(path_of(filename).lower()) is not None
    return in_library or filename.startswith(GENERATED) or is_of_pytorch(filename)


# --- frames ------------------------------------------------------------------------------------------------------


def name_of(frame: Frame) -> str:
    """Return a frame as ``train.py:41 in step``."""
    return f"{frame['filename']}:{frame['line']} in {frame['name']}"


def python_frames(frames: Iterable[Frame]) -> list[Frame]:
    """Return the frames of Python functions, the innermost first."""
    return [frame for frame in frames if is_python(frame["filename"])]


def own_line(frames: Iterable[Frame]) -> Frame | None:
    """Return the innermost frame that is in no library, or else the innermost that is not PyTorch's."""
    candidates = python_frames(frames)
    own = (frame for frame in candidates if not is_of_library(frame["filename"]))
    others = (frame for frame in candidates if not is_of_pytorch(frame["filename"]))
    return next(own, None) or next(others, None)


def phase_of(frames: Sequence[Frame]) -> str:
    """Return the phase of a step in which an allocation was made: ``forward``, ``backward`` or ``optimizer``."""
    found = python_frames(frames)
    if any(is_of_optimizer(frame["filename"]) for frame in found):
        return "optimizer"
    if not found or any(frame["name"] in BACKWARD_NAMES for frame in found):
        return "backward"
    return "forward"


def is_of_loss(frames: Iterable[Frame]) -> bool:
    """Return whether a loss function made an allocation."""
    return any(frame["name"] in LOSS_NAMES and is_python(frame["filename"]) for frame in frames)


# --- allocations -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Holder:
    """An allocation that exists at a moment, and its purpose."""

    allocation: Allocation
    kind: str
    """One of :data:`KINDS`"""


def name_holders(history: History, moment: int) -> list[Holder]:
    """Return the allocations that exist after an event of a history with their purposes, the largest first."""
    names = _Names(history)
    holders = [Holder(allocation, names.kind_of(allocation)) for allocation in history.alive(moment)]
    return sorted(holders, key=lambda holder: -holder.allocation.size)


def parts_over_time(history: History, moments: Iterable[int]) -> list[dict[str, int]]:
    """Return the bytes of each part of the cost model after each of some events."""
    names = _Names(history)
    kinds = [(allocation, KINDS[names.kind_of(allocation)]) for allocation in history.allocations]
    over_time = []
    for moment in moments:
        parts = dict.fromkeys(KINDS.values(), 0)
        for allocation, part in kinds:
            if allocation.is_alive(moment):
                parts[part] += allocation.size
        over_time.append(parts)
    return over_time


class _Names:
    """Phases, sizes and lifetimes of a whole history, from which its allocations are named."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.phases = {
            id(allocation): phase_of(allocation.frames) if allocation.start >= 0 else "before"
            for allocation in history.allocations
        }
        self.first_loss = min(
            (allocation.start for allocation in self._recorded() if is_of_loss(allocation.frames)), default=-1
        )
        self.backward = [
            allocation.start for allocation in self._recorded() if self.phases[id(allocation)] == "backward"
        ]
        """Events at which the backward pass requested memory"""
        self.first_backward = min(self.backward, default=len(history.events))
        self.frees_have_frames = any(allocation.end_frames for allocation in history.allocations)
        self.first_forward = self._find_first_forward()
        self.gradients = self._find_gradients()
        self.loss_sizes = self._find_loss_sizes()
        self.weights, self.states = self._find_weights()
        self.weight_sizes = Counter(
            allocation.size for allocation in history.allocations if id(allocation) in self.weights
        )

    def _recorded(self) -> Iterable[Allocation]:
        return (allocation for allocation in self.history.allocations if allocation.start >= 0)

    def _find_first_forward(self) -> int:
        """Return the first event of a module's call, or whose allocation a backward pass frees."""
        freed = (
            allocation.start
            for allocation in self._recorded()
            if self.phases[id(allocation)] == "forward"
            and allocation.end is not None
            and allocation.end >= self.first_backward
            and phase_of(allocation.end_frames or allocation.frames) != "optimizer"
        )
        called = (
            allocation.start
            for allocation in self._recorded()
            if any(frame["name"] in CALLS for frame in allocation.frames)
        )
        first = min((*freed, *called), default=len(self.history.events))
        return first if self.first_loss < 0 else min(first, self.first_loss)

    def _lasts(self, allocation: Allocation) -> bool:
        """Return whether an allocation exists until the end of the history."""
        return allocation.end is None

    def _find_weights(self) -> tuple[set[int], set[int]]:
        """Return the ids of weights, and those of the optimizer's states."""
        weights, states = set(), set()
        lasting = [
            allocation for allocation in self.history.allocations if self._lasts(allocation) and allocation.size >= 1
        ]
        gradient_count = Counter(
            allocation.size for allocation in self.history.allocations if id(allocation) in self.gradients
        )
        steps = max(1, self._count_steps())
        for allocation in lasting:
            phase = self.phases[id(allocation)]
            if phase == "optimizer":
                states.add(id(allocation))
            elif phase == "forward" and allocation.start < self.first_forward and allocation.size not in WORKSPACES:
                weights.add(id(allocation))
        # Older than the history are weights and states: of each size, as many weights as gradients in a step.
        old = [
            allocation
            for allocation in lasting
            if self.phases[id(allocation)] == "before" and allocation.size not in WORKSPACES
        ]
        by_size: dict[int, list[Allocation]] = {}
        for allocation in old:
            by_size.setdefault(allocation.size, []).append(allocation)
        for size, group in by_size.items():
            per_step = -(-gradient_count[size] // steps) if gradient_count[size] else len(group)
            for number, allocation in enumerate(sorted(group, key=lambda allocation: allocation.address)):
                is_state = phase_of(allocation.frames) == "optimizer" if allocation.frames else number >= per_step
                (states if is_state else weights).add(id(allocation))
        return weights, states

    def _count_steps(self) -> int:
        """Return how many times the optimizer stepped, which are runs of its allocations and frees."""
        runs, inside = 0, False
        for event in self.history.events:
            if event["action"] not in ("alloc", "free_requested"):
                continue
            is_step = phase_of(event.get("frames", ())) == "optimizer"
            runs, inside = runs + (is_step and not inside), is_step
        return runs

    def _find_gradients(self) -> set[int]:
        """Return the ids of gradients, which a backward pass allocates and does not free."""
        gradients = set()
        for allocation in self._recorded():
            if self.phases[id(allocation)] != "backward":
                continue
            freed = phase_of(allocation.end_frames) if allocation.end_frames else "nobody"
            if allocation.end is None or freed in ("optimizer", "forward"):
                gradients.add(id(allocation))
        return gradients

    def _find_loss_sizes(self) -> set[int]:
        """Return the sizes of tensors with one number for each logit, in two or in four bytes."""
        sizes = {
            allocation.size
            for allocation in self.history.allocations
            if allocation.size >= SMALL and is_of_loss(allocation.frames)
        }
        sizes |= {2 * size for size in sizes} | {size // 2 for size in sizes}
        # A loss in chunks has a gradient of its input, which is as large as what layers keep.
        before = Counter(
            allocation.size
            for allocation in self.history.allocations
            if self.first_forward <= allocation.start < self.first_loss and not is_of_loss(allocation.frames)
        )
        return {size for size in sizes if before[size] < FEWEST_OF_LAYERS}

    def kind_of(self, allocation: Allocation) -> str:
        """Return the purpose of an allocation, one of :data:`KINDS`."""
        phase = self.phases[id(allocation)]
        if id(allocation) in self.weights:
            return "weight"
        if id(allocation) in self.states:
            return "state"
        if allocation.size in WORKSPACES and self._lasts(allocation):
            return "workspace"
        if phase == "optimizer":
            return "state" if self._lasts(allocation) else "temporary"
        if (
            phase == "backward"
            and id(allocation) in self.gradients
            and allocation.size in (self.weight_sizes or (allocation.size,))
        ):
            return "gradient"
        if is_of_loss(allocation.frames) or (
            allocation.size in self.loss_sizes and allocation.start >= max(0, self.first_forward)
        ):
            return "loss"
        if phase == "backward":
            return "activation" if python_frames(allocation.frames) else "temporary"
        if phase == "forward":
            return self._kind_in_forward(allocation)
        return "unnamed"

    def _kind_in_forward(self, allocation: Allocation) -> str:
        """Return the purpose of an allocation of the forward pass."""
        if allocation.start < self.first_forward:
            return "weight" if self._lasts(allocation) else "temporary"
        if 2 * allocation.size in self.weight_sizes and self._is_cast(allocation):
            return "copy"
        return "activation" if self._reaches_backward(allocation) else "temporary"

    def _reaches_backward(self, allocation: Allocation) -> bool:
        """Return whether an allocation exists in a backward pass, or at the end."""
        if allocation.end is None or (allocation.end_frames == [] and self.frees_have_frames):
            return True
        place = bisect_right(self.backward, allocation.start)
        return place < len(self.backward) and self.backward[place] < allocation.end

    def _is_cast(self, allocation: Allocation) -> bool:
        """Return whether a linear layer made an allocation: autocast casts its weight on the way in."""
        frames = python_frames(allocation.frames)
        if not frames:
            return False
        filename = frames[0]["filename"]
        return frames[0]["name"] == "linear" or (is_of_pytorch(filename) and filename.endswith("linear.py"))
