"""What each allocation of a history is for: a weight, a gradient, an activation, named by size, frames and lifetime.

Frames alone do not tell: the backward pass runs in a thread of the autograd engine, where there are no Python
functions. So three things are asked of each allocation.

* In which phase it came: in the optimizer (a frame of an optimizer's file), in the backward pass (no frames, or those
  of code that it calls), or else in the forward pass.
* How long it stayed: over the whole history, from the forward to the backward pass, or for a moment.
* Which others are as large: a gradient is as large as its weight, and what the loss makes as large as the logits.
"""

from __future__ import annotations

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
"""What an allocation may be, and the part of :mod:`gpuguide.costs.memory` that counts it"""
SMALL = 2**16
"""Bytes below which an allocation has no part in a reason: counters, losses, factors"""
WORKSPACES = frozenset({8_519_680, 33_554_432, 33_562_624})
"""Sizes of cuBLAS's workspaces on GPUs before Hopper and from it upwards"""
OPTIMIZER_FILES = ("/torch/optim/", "/torchao/optim/", "/bitsandbytes/optim/", "/flashoptim/", "eight_bit")
LOSS_NAMES = ("cross_entropy", "nll_loss", "log_softmax", "linear_cross_entropy", "ForCausalLMLoss")
BACKWARD_NAMES = ("unpack_hook", "recompute_fn", "_backward_impl", "backward_fn", "_engine_run_backward", "_make_grads")
CALLS = ("_call_impl", "_wrapped_call_impl", "forward")
"""Functions through which modules are called"""
OF_LIBRARIES = ("/site-packages/", "/dist-packages/", "/torch/", "/torchinductor_", "/lib/python3", "<")


def name_of(frame: Frame) -> str:
    """Return a frame as a person looks it up: ``train.py:41 in step``."""
    return f"{frame['filename']}:{frame['line']} in {frame['name']}"


def python_frames(frames: Iterable[Frame]) -> list[Frame]:
    """Return the frames of Python functions, the innermost first; those of C++ have no file of Python."""
    return [each for each in frames if each["filename"].endswith(".py") or each["filename"].startswith("<")]


def own_line(frames: Iterable[Frame]) -> Frame | None:
    """Return the innermost frame that is in no library, or else the innermost that is not PyTorch's."""
    found = python_frames(frames)
    own = [each for each in found if not any(part in each["filename"] for part in OF_LIBRARIES)]
    others = [each for each in found if "/torch/" not in each["filename"] and "torchinductor_" not in each["filename"]]
    return next(iter(own or others), None)


def phase_of(frames: Sequence[Frame]) -> str:
    """Return in which phase of a step an allocation came: ``forward``, ``backward`` or ``optimizer``."""
    found = python_frames(frames)
    if any(part in each["filename"] for each in found for part in OPTIMIZER_FILES):
        return "optimizer"
    if not found or any(each["name"] in BACKWARD_NAMES for each in found):
        return "backward"
    return "forward"


def is_of_loss(frames: Iterable[Frame]) -> bool:
    """Return whether a loss asked for it."""
    return any(each["name"] in LOSS_NAMES for each in python_frames(frames))


@dataclass(frozen=True)
class Holder:
    """An allocation that is there at a moment, and what it is for."""

    allocation: Allocation
    kind: str
    """One of :data:`KINDS`"""


def name_holders(history: History, moment: int) -> list[Holder]:
    """Return what is allocated after an event of a history, the largest first, each with what it is for."""
    names = _Names(history)
    found = [Holder(each, names.kind_of(each)) for each in history.alive(moment)]
    return sorted(found, key=lambda holder: -holder.allocation.size)


def parts_over_time(history: History, moments: Iterable[int]) -> list[dict[str, int]]:
    """Return the bytes of each part of the cost model after each of some events."""
    names = _Names(history)
    kinds = [(each, KINDS[names.kind_of(each)]) for each in history.allocations]
    found = []
    for moment in moments:
        parts = dict.fromkeys(KINDS.values(), 0)
        for each, part in kinds:
            if each.is_alive(moment):
                parts[part] += each.size
        found.append(parts)
    return found


class _Names:
    """What is known of a history before single allocations are named."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.phases = {id(each): phase_of(each.frames) if each.start >= 0 else "before" for each in history.allocations}
        self.first_loss = min((each.start for each in self._born() if is_of_loss(each.frames)), default=-1)
        self.backward = [each.start for each in self._born() if self.phases[id(each)] == "backward"]
        """Events at which the backward pass asked for memory"""
        self.first_backward = min(self.backward, default=len(history.events))
        self.frees_have_frames = any(each.end_frames for each in history.allocations)
        self.first_forward = self._find_first_forward()
        self.gradients = self._find_gradients()
        self.loss_sizes = self._find_loss_sizes()
        self.weights, self.states = self._find_weights()
        self.weight_sizes = Counter(each.size for each in history.allocations if id(each) in self.weights)

    def _born(self) -> Iterable[Allocation]:
        return (each for each in self.history.allocations if each.start >= 0)

    def _find_first_forward(self) -> int:
        """Return the first event of a module's call, or whose allocation a backward pass frees: before it is set-up."""
        freed = (
            each.start
            for each in self._born()
            if self.phases[id(each)] == "forward"
            and each.end is not None
            and each.end >= self.first_backward
            and phase_of(each.end_frames or each.frames) != "optimizer"
        )
        called = (each.start for each in self._born() if any(frame["name"] in CALLS for frame in each.frames))
        first = min((*freed, *called), default=len(self.history.events))
        return first if self.first_loss < 0 else min(first, self.first_loss)

    def _lasts(self, each: Allocation) -> bool:
        """Return whether an allocation stays over the rest of the history."""
        return each.end is None

    def _find_weights(self) -> tuple[set[int], set[int]]:
        """Return the ids of weights, and those of the optimizer's states."""
        weights, states = set(), set()
        lasting = [each for each in self.history.allocations if self._lasts(each) and each.size >= 1]
        gradient_count = Counter(each.size for each in self.history.allocations if id(each) in self.gradients)
        steps = max(1, self._count_steps())
        for each in lasting:
            phase = self.phases[id(each)]
            if phase == "optimizer":
                states.add(id(each))
            elif phase == "forward" and each.start < self.first_forward and each.size not in WORKSPACES:
                weights.add(id(each))
        # What is older than the history is weights and states: of each size, as many weights as gradients in a step.
        old = [each for each in lasting if self.phases[id(each)] == "before" and each.size not in WORKSPACES]
        by_size: dict[int, list[Allocation]] = {}
        for each in old:
            by_size.setdefault(each.size, []).append(each)
        for size, group in by_size.items():
            per_step = -(-gradient_count[size] // steps) if gradient_count[size] else len(group)
            for number, each in enumerate(sorted(group, key=lambda each: each.address)):
                is_state = phase_of(each.frames) == "optimizer" if each.frames else number >= per_step
                (states if is_state else weights).add(id(each))
        return weights, states

    def _count_steps(self) -> int:
        """Return how many times the optimizer stepped: runs of its allocations and frees."""
        runs, inside = 0, False
        for event in self.history.events:
            if event["action"] not in ("alloc", "free_requested"):
                continue
            is_step = any(
                part in each["filename"] for each in python_frames(event.get("frames", ())) for part in OPTIMIZER_FILES
            )
            runs, inside = runs + (is_step and not inside), is_step
        return runs

    def _find_gradients(self) -> set[int]:
        """Return the ids of gradients: born in a backward pass, and not freed in it."""
        found = set()
        for each in self._born():
            if self.phases[id(each)] != "backward":
                continue
            freed = phase_of(each.end_frames) if each.end_frames else "nobody"
            if each.end is None or freed in ("optimizer", "forward"):
                found.add(id(each))
        return found

    def _find_loss_sizes(self) -> set[int]:
        """Return the sizes of what has one number a logit, in two or in four bytes."""
        sizes = {each.size for each in self.history.allocations if each.size >= SMALL and is_of_loss(each.frames)}
        return sizes | {2 * size for size in sizes} | {size // 2 for size in sizes}

    def kind_of(self, each: Allocation) -> str:
        """Return what an allocation is for: one of :data:`KINDS`."""
        phase = self.phases[id(each)]
        if id(each) in self.weights:
            return "weight"
        if id(each) in self.states:
            return "state"
        if each.size in WORKSPACES and self._lasts(each):
            return "workspace"
        if phase == "optimizer":
            return "state" if self._lasts(each) else "temporary"
        if phase == "backward" and id(each) in self.gradients and each.size in (self.weight_sizes or (each.size,)):
            return "gradient"
        if is_of_loss(each.frames) or (each.size in self.loss_sizes and each.start >= max(0, self.first_forward)):
            return "loss"
        if phase == "backward":
            return "activation" if python_frames(each.frames) else "temporary"
        if phase == "forward":
            return self._kind_in_forward(each)
        return "unnamed"

    def _kind_in_forward(self, each: Allocation) -> str:
        """Return what an allocation of the forward pass is for."""
        if each.start < self.first_forward:
            return "weight" if self._lasts(each) else "temporary"
        if 2 * each.size in self.weight_sizes and self._is_cast(each):
            return "copy"
        return "activation" if self._reaches_backward(each) else "temporary"

    def _reaches_backward(self, each: Allocation) -> bool:
        """Return whether an allocation is there in a backward pass, or at the end."""
        if each.end is None or (each.end_frames == [] and self.frees_have_frames):
            return True
        place = bisect_right(self.backward, each.start)
        return place < len(self.backward) and self.backward[place] < each.end

    def _is_cast(self, each: Allocation) -> bool:
        """Return whether a product asked for a copy: autocast casts weights on the way into ``linear``."""
        found = python_frames(each.frames)
        return bool(found) and ("/torch/nn/modules/linear.py" in found[0]["filename"] or found[0]["name"] == "linear")
