"""Cost model: the three limits of a step, and what fusing its operations saves.

A step takes at least as long as the slowest of three: the host *launches* its kernels one after the other, memory moves
its *bytes*, and multiprocessors do its *FLOPs*. A CUDA graph lowers the cost of launches, fusion lowers bytes and
launches, and neither lowers FLOPs.

Which operations a compiler fuses is modelled simply: element-wise operations and reductions of rows that depend on each
other become one kernel if no other operation, such as a matmul, lies between them. What only they use is never written
to memory. A real compiler may do a little more, or less.

Source of the three limits: H. He, "Making Deep Learning Go Brrrr From First Principles", 2022.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpuguide.fusion.tracing import Operation, Region, StepTrace

LIMITS = ("launches", "bytes", "FLOPs")


@dataclass(frozen=True)
class Machine:
    """Four ceilings of a GPU with its host."""

    launch: float
    """Seconds that the host takes to launch an eager operation"""
    graph_launch: float
    """Seconds from one small kernel to the next in a CUDA graph"""
    bandwidth: float
    """B/s of an element-wise operation, read and written bytes together"""
    arithmetic: float
    """FLOP/s of matmuls in the format of the step"""


@dataclass(frozen=True)
class Limits:
    """Shortest time that each of the three allows, in seconds."""

    launches: float
    bytes: float
    flops: float

    @property
    def seconds(self) -> float:
        """Longest of the three."""
        return max(self.launches, self.bytes, self.flops)

    @property
    def name(self) -> str:
        """Name of the longest, of :data:`LIMITS`."""
        times = (self.launches, self.bytes, self.flops)
        return LIMITS[times.index(max(times))]


def limits(kernels: int, moved: float, flops: float, machine: Machine, *, graph: bool = False) -> Limits:
    """Return the three limits of a step.

    Parameters
    ----------
    kernels : int
        Kernels that it starts.
    moved : float
        Bytes that they read and write.
    flops : float
        Floating-point operations of its matmuls.
    machine : Machine
        Ceilings.
    graph : bool
        Whether a CUDA graph launches them, or the host one by one.

    Examples
    --------
    >>> machine = Machine(launch=8e-6, graph_launch=1e-6, bandwidth=4e12, arithmetic=7e14)
    >>> limits(3, 9 * 2 * 2**14, 0, machine).name, limits(3, 9 * 2 * 2**26, 0, machine).name
    ('launches', 'bytes')
    """
    launch = machine.graph_launch if graph else machine.launch
    return Limits(kernels * launch, moved / machine.bandwidth, flops / machine.arithmetic)


def add_layer_norm_bytes(rows: int, columns: int, element_size: int, *, backward: bool) -> int:
    """Return the fewest bytes of a residual addition with layer norm, and of its backward pass if asked for.

    The forward pass reads two arrays and writes two. The backward pass reads three and writes one. Vectors with one
    number for each row or column do not count.
    """
    return (8 if backward else 4) * rows * columns * element_size


@dataclass(frozen=True)
class Kernel:
    """Operations that one kernel carries out, and what it moves."""

    operations: tuple[Operation, ...]
    moved: int

    @property
    def flops(self) -> int:
        """Floating-point operations."""
        return sum(operation.flops for operation in self.operations)

    @property
    def is_fusable(self) -> bool:
        """Whether a compiler can fuse it with others."""
        return self.operations[0].kind != "other"

    def seconds(self, machine: Machine) -> float:
        """Return the time that a GPU takes for it, launched by a graph."""
        return max(machine.graph_launch, self.moved / machine.bandwidth, self.flops / machine.arithmetic)


def eager_kernels(trace: StepTrace) -> list[Kernel]:
    """Return a kernel for each operation."""
    return [Kernel((operation,), operation.moved) for operation in trace.operations]


def fuse(trace: StepTrace) -> list[Kernel]:
    """Return the kernels that a compiler would make of a step.

    An operation has a depth: on the longest path to it from the inputs, the number of operations that end a kernel.
    Operations of one depth that depend on each other, or read the same array, are fused. No cycle can arise, since a
    path through another kernel would make the depth larger.
    """
    writer: dict[int, int] = {}
    depths: list[int] = []
    groups = list(range(len(trace.operations)))

    def group_of(number: int) -> int:
        while groups[number] != number:
            groups[number] = groups[groups[number]]
            number = groups[number]
        return number

    readers: dict[tuple[Region, int], int] = {}
    for number, operation in enumerate(trace.operations):
        memories = {region[0] for region in (*operation.reads, *operation.writes)}
        sources = [writer[memory] for memory in sorted(memories) if memory in writer]
        fusable = operation.kind != "other"
        ends = [depths[source] + _ends_kernel(trace.operations[source], operation) for source in sources]
        depth = max(ends, default=0)
        depths.append(depth)
        if fusable:
            near = [source for source, end in zip(sources, ends, strict=True) if end == depth]
            near = [source for source in near if trace.operations[source].kind in ("pointwise", "row")]
            same = [readers[region, depth] for region in operation.reads if (region, depth) in readers]
            for other in (*near, *same):
                if depths[other] == depth:
                    groups[group_of(other)] = group_of(number)
            if operation.kind != "columns":
                readers.update({(region, depth): number for region in operation.reads})
        for memory, *_ in operation.writes:
            writer[memory] = number
    members: dict[int, list[int]] = {}
    for number in range(len(groups)):
        members.setdefault(group_of(number), []).append(number)
    read_by: dict[int, set[int]] = {}
    for number, operation in enumerate(trace.operations):
        for memory, *_ in operation.reads:
            read_by.setdefault(memory, set()).add(number)
    return [_kernel(trace, numbers, read_by) for numbers in members.values()]


def _ends_kernel(source: Operation, operation: Operation) -> int:
    """Return 1 if an operation cannot be in the kernel of one whose result it reads, else 0."""
    return int(source.kind in ("other", "columns") or operation.kind == "other")


def _kernel(trace: StepTrace, numbers: Sequence[int], read_by: Mapping[int, set[int]]) -> Kernel:
    """Return the kernel of some operations: what they exchange stays in registers, unless others need it later."""
    read: dict[Region, int] = {}
    written: dict[Region, int] = {}
    in_registers: set[int] = set()
    for number in numbers:
        operation = trace.operations[number]
        read.update({region: size for region, size in operation.reads.items() if region[0] not in in_registers})
        written.update(operation.writes)
        in_registers |= {memory for memory, *_ in operation.writes}
    inside, first = set(numbers), numbers[0]
    moved = sum(read.values())
    for (memory, *_), size in written.items():
        others = (number > first and number not in inside for number in read_by.get(memory, ()))
        if memory in trace.kept or any(others):
            moved += size
    return Kernel(tuple(trace.operations[number] for number in numbers), moved)
