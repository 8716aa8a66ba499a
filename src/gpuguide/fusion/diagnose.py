"""Which limit holds for a step, and what a CUDA graph, ``torch.compile`` or both would gain, before any is tried.

On a GPU the step is timed, its kernels are counted, and the model of :mod:`gpuguide.fusion.cost` says by which factor
fusion shortens those kernels that a compiler would write. Without one, everything follows from the model and from the
ceilings of some GPU.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from gpuguide.errors import GpuguideError
from gpuguide.fusion import machine as measuring
from gpuguide.fusion.cost import Kernel, Limits, Machine, eager_kernels, fuse, limits
from gpuguide.fusion.counting import KernelCount, count_kernels
from gpuguide.fusion.tracing import StepTrace, Wait, trace, user_line
from gpuguide.units import format_quantity

COMPILED_LAUNCH = 0.7
"""Time that compiled code takes to launch a kernel, as a share of what the eager step takes for one of its own"""
COMPILED_LAUNCH_IN_TRAINING = 1.0
"""The same where the step has a backward pass, whose compiled code autograd calls with all that was saved"""
GUARDS = 45e-6
"""Seconds that the host takes to enter and leave compiled code"""
GRAPH_GAP = 0.4e-6
"""Seconds of a graph from the end of a kernel to the start of the next, beyond what the profiler gives for each"""
AHEAD = 0.5
"""Share of a step's time below which the host is so far ahead that the step takes as long as its kernels"""
BUSY = 0.9
"""Share of a step's time from which the GPU counts as busy all the time"""
ATTRIBUTED = 0.9
"""Share of the GPU's time that must be known by operation; otherwise the model's shares are taken"""
SYNCHRONIZED = "called a synchronizing CUDA operation"
"""PyTorch's warning where the host waits for the GPU, which differs from what it says about the debug mode itself"""
CHANGES = ("graph", "compile", "compile + graph")


@dataclass(frozen=True)
class Diagnosis:
    """Result of :func:`diagnose`. Printed, it is a short table."""

    limit: str
    """``launches``, ``bytes`` or ``FLOPs``"""
    limits: Limits
    """Shortest time that each of the three allows the uncompiled step"""
    kernels: int
    """Kernels of the step"""
    fused_kernels: int
    """Kernels of the step once a compiler has fused what it can"""
    moved: int
    """Bytes that its operations read and write"""
    fused_moved: int
    """Bytes that remain after fusion"""
    flops: int
    """Floating-point operations of its matmuls, convolutions and attention"""
    seconds: float
    """Time of the uncompiled step, measured on a GPU, else predicted"""
    gpu_seconds: float
    """Part of that time in which the GPU computes"""
    predicted: dict[str, float]
    """Seconds of the step with each of :data:`CHANGES`"""
    waits: tuple[Wait, ...]
    """Lines where the host waits for the GPU, which a graph cannot hold"""
    measured: bool
    """Whether the step ran on a GPU"""

    def gain(self, change: str) -> float:
        """Return how many times as fast the step would be with one of :data:`CHANGES`."""
        return self.seconds / self.predicted[change]

    def __str__(self) -> str:
        how = "measured" if self.measured else "predicted"
        busy = min(1.0, self.gpu_seconds / self.seconds)
        rows = [
            f"limit      {self.limit}",
            f"step       {format_quantity(self.seconds, 's')} {how}, GPU busy {busy:.0%} of it",
            f"kernels    {self.kernels:,}, fused {self.fused_kernels:,}",
            f"bytes      {format_quantity(self.moved, 'B')}, fused {format_quantity(self.fused_moved, 'B')}",
            f"FLOPs      {format_quantity(self.flops, 'FLOP')}",
            f"shortest   launches {format_quantity(self.limits.launches, 's')}, "
            f"bytes {format_quantity(self.limits.bytes, 's')}, FLOPs {format_quantity(self.limits.flops, 's')}",
        ]
        rows += [
            f"{change:<16}{format_quantity(seconds, 's')} expected, {self.gain(change):.2f} times as fast"
            for change, seconds in self.predicted.items()
        ]
        rows += [f"waits at {wait.line}: {wait.reason}; a graph cannot hold it" for wait in self.waits]
        return "\n".join(rows)


def diagnose(step: Callable[[], object], machine: Machine | None = None) -> Diagnosis:
    """Say which limit holds for a step, and predict what would make it faster.

    Parameters
    ----------
    step : callable
        Takes no argument, and does the same work each time, uncompiled. On a GPU it runs up to 120 times, otherwise
        twice; if it trains, it trains as many steps.
    machine : Machine, optional
        Ceilings; by default those of the current GPU, which are measured in half a second. Needed without one.

    Raises
    ------
    GpuguideError
        If there is no GPU and no machine is passed, or the step starts no kernel.
    """
    on_gpu = torch.cuda.is_available()
    if machine is None and not on_gpu:
        raise GpuguideError(
            "Without a GPU, pass the ceilings of one: diagnose(step, Machine(launch=..., graph_launch=..., "
            "bandwidth=..., arithmetic=...)). gpuguide.fusion.tracing.trace(step) needs neither."
        )
    step()  # what is set up once does not count
    traced = trace(step)
    if not traced.operations:
        raise GpuguideError(
            "The step starts no kernel: it computes with no tensor, or hides its work in compiled code."
        )
    machine = machine or measuring.measure_machine()
    if not on_gpu:
        return predict(traced, machine)
    waits = _merge(traced.waits, find_waits(step))
    count = count_kernels(step)
    return predict(
        replace(traced, waits=waits), machine, measuring.wall_seconds(step), measuring.host_seconds(step), count
    )


def predict(
    traced: StepTrace,
    machine: Machine,
    seconds: float | None = None,
    host_seconds: float | None = None,
    count: KernelCount | None = None,
) -> Diagnosis:
    """Return the diagnosis of a traced step, from measurements or, without them, from the model alone.

    Parameters
    ----------
    traced : StepTrace
        Operations of the step.
    machine : Machine
        Ceilings.
    seconds, host_seconds : float, optional
        Time of the step, and time that the host takes to launch it.
    count : KernelCount, optional
        Kernels that it starts.
    """
    before, after = eager_kernels(traced), fuse(traced)
    durations = count.durations if count else [kernel.seconds(machine) for kernel in before]
    kernels = count.kernels if count else len(before)
    profiled = sum(durations)
    host = host_seconds if host_seconds is not None else len(before) * machine.launch
    seconds = seconds if seconds is not None else max(host, profiled)
    host = min(host, seconds)
    # One profiled call finds the GPU cool. Where kernels follow one another, the step says what they take under load.
    gpu = max(profiled, seconds) if count and host < AHEAD * seconds else profiled
    remaining = len(after) / len(before)
    fused_kernels = max(1, round(kernels * remaining))
    gap = GRAPH_GAP if count else 0.0  # the model's kernels include it
    in_graph = sum(max(each * gpu / profiled, machine.graph_launch) + gap for each in durations)
    fused = fused_seconds(before, after, machine, gpu, count) + gap * fused_kernels
    fused = max(fused, fused_kernels * machine.graph_launch)
    trains = any("backward" in operation.name for operation in traced.operations)
    launch = COMPILED_LAUNCH_IN_TRAINING if trains else COMPILED_LAUNCH
    compiled_host = GUARDS + launch * host * remaining
    shortest = limits(kernels, traced.moved, traced.flops, machine)
    return Diagnosis(
        limit="launches" if gpu < BUSY * seconds else _longer_on_gpu(before, machine),
        limits=shortest,
        kernels=kernels,
        fused_kernels=fused_kernels,
        moved=traced.moved,
        fused_moved=sum(kernel.moved for kernel in after),
        flops=traced.flops,
        seconds=seconds,
        gpu_seconds=gpu,
        predicted={
            "graph": min(seconds, in_graph),
            "compile": min(seconds, max(compiled_host, fused)),
            "compile + graph": min(seconds, fused),
        },
        waits=tuple(dict.fromkeys(traced.waits)),
        measured=count is not None,
    )


def fused_seconds(
    before: Sequence[Kernel], after: Sequence[Kernel], machine: Machine, gpu: float, count: KernelCount | None
) -> float:
    """Return the GPU's time after fusion, of which ``gpu`` seconds were needed before.

    What cannot be fused takes the same time. What can takes as long as the model says, mostly for the bytes that it
    moves: eager kernels may move more than the model knows, such as a masked fill, which copies first.
    """

    def modelled(kernels: Sequence[Kernel], is_fusable: bool) -> float:
        return sum(kernel.seconds(machine) for kernel in kernels if kernel.is_fusable == is_fusable)

    old, new, others = modelled(before, True), modelled(after, True), modelled(before, False)
    if count:
        fusable_by_name = {kernel.operations[0].name: kernel.is_fusable for kernel in before}
        known = sum(count.by_operation.values())
        if known > ATTRIBUTED * count.seconds:
            found = sum(time for names, time in count.by_operation.items() if is_any_fusable(names, fusable_by_name))
            fusable = gpu * found / known
            return gpu - fusable + min(fusable, new)
    return gpu * (1 - old / (old + others) * (1 - min(1.0, new / old))) if old else gpu


def is_any_fusable(names: Sequence[str], fusable_by_name: Mapping[str, bool]) -> bool:
    """Tell whether the innermost operation that a trace knows can be fused with others."""
    return next((fusable_by_name[name] for name in names if name in fusable_by_name), False)


def find_waits(step: Callable[[], object]) -> list[Wait]:
    """Return the lines of a step at which PyTorch waits for the GPU, by its own warnings."""
    waits: list[Wait] = []

    def note(message: Warning | str, *_: object, **__: object) -> None:
        if SYNCHRONIZED in str(message):
            waits.append(Wait(user_line(), "waits for the GPU"))

    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = note
        torch.cuda.set_sync_debug_mode("warn")
        try:
            step()
        finally:
            torch.cuda.set_sync_debug_mode(before)
    return waits


def _merge(known: Sequence[Wait], further: Sequence[Wait]) -> list[Wait]:
    """Add waits at other lines; the known ones have a better reason."""
    lines = {wait.line for wait in known}
    return [*known, *(wait for wait in further if wait.line not in lines)]


def _longer_on_gpu(kernels: Sequence[Kernel], machine: Machine) -> str:
    """Return whether kernels that move bytes or kernels that do FLOPs take the GPU longer."""
    by_bytes = by_flops = 0.0
    for kernel in kernels:
        moving, computing = kernel.moved / machine.bandwidth, kernel.flops / machine.arithmetic
        if moving > computing:
            by_bytes += moving
        else:
            by_flops += computing
    return "bytes" if by_bytes > by_flops else "FLOPs"
