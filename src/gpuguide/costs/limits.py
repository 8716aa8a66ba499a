"""The shortest time that an operation can take on a GPU, and what bounds it.

An operation is counted as arithmetic and as bytes that must move: through memory, over the link to other GPUs, or
from the host. Each has a ceiling. The time is that of the slower one, as both can go on at once, and the start of a
kernel comes on top. How near a program comes is what a benchmark shows. Measured ceilings of arithmetic are those of
a product that draws all the power that the GPU may; one that draws less can run a few percent faster.

What is assumed: every operand is read once and every result written once, whatever the caches do; all arithmetic runs
at the rate of matrix products in the operation's format. A real operation that is far from this moves more, or
computes in smaller pieces.

>>> product = matmul(8192, 8192, 8192, "bf16")
>>> round(product.intensity)
2731

References
----------
S. Williams, A. Waterman, D. Patterson, "Roofline: An Insightful Visual Performance Model for Multicore
Architectures", Communications of the ACM 52(4), 2009.
T. Dao, "FlashAttention-2", 2023, section 2: operations and bytes of attention.
P. Patarasuk, X. Yuan, "Bandwidth Optimal All-reduce Algorithms for Clusters of Workstations", 2009: the ring.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuguide.costs import roofline
from gpuguide.costs.memory import ELEMENT_SIZE as STORED
from gpuguide.costs.memory import Shape, local
from gpuguide.errors import GpuguideError
from gpuguide.hardware.machines import FORMATS, Ceiling, Machine

ELEMENT_SIZE = {"bf16": 2, "fp16": 2, "tf32": 4, "fp32": 4, "fp8": 1}
"""Bytes a number of an operand or a result. TF32 is a way of computing with numbers stored as FP32."""
WEIGHTS = ("bf16", "fp32", "fp8", "int8", "int4")
"""Formats in which the weights of a model may be stored for a decode step"""
CACHES = ("bf16", "fp32", "fp8")
PLACES = ("memory", "host")
LARGEST = 10**12
"""No size is accepted above it"""


@dataclass(frozen=True)
class Operation:
    """What an operation costs, whatever the GPU."""

    flops: float
    moved: float
    """Bytes"""
    through: str
    """What the bytes move through: ``memory``, ``link`` or ``host``"""
    format: str
    """Whose rate of arithmetic counts"""

    @property
    def intensity(self) -> float:
        """Operations for each byte moved, FLOP/B."""
        return roofline.arithmetic_intensity(self.flops, self.moved)


@dataclass(frozen=True)
class Limit:
    """The floor of an operation's time on one GPU."""

    operation: Operation
    rate: Ceiling
    """Of arithmetic, FLOP/s"""
    bandwidth: Ceiling
    """B/s"""
    launch: Ceiling | None

    @property
    def arithmetic_time(self) -> float:
        """Seconds that the arithmetic takes at its ceiling."""
        return self.operation.flops / self.rate.value

    @property
    def moving_time(self) -> float:
        """Seconds that the bytes take at their ceiling."""
        return self.operation.moved / self.bandwidth.value

    @property
    def launch_time(self) -> float:
        """Seconds to start a kernel; 0 where it is not measured."""
        return self.launch.value if self.launch else 0.0

    @property
    def time(self) -> float:
        """Seconds at least: arithmetic and movement at once, after the start."""
        o = self.operation
        return self.launch_time + roofline.time_floor(o.flops, o.moved, self.rate.value, self.bandwidth.value)

    @property
    def bound(self) -> str:
        """What takes longest: ``arithmetic``, ``memory``, ``link``, ``host`` or ``launch``."""
        longest = max(self.arithmetic_time, self.moving_time)
        if self.launch_time > longest:
            return "launch"
        return "arithmetic" if self.arithmetic_time >= self.moving_time else self.operation.through

    @property
    def ridge(self) -> float:
        """Intensity from which on arithmetic is the limit, FLOP/B."""
        return roofline.ridge(self.rate.value, self.bandwidth.value)

    @property
    def throughput(self) -> float:
        """FLOP/s at best, the start of the kernel included."""
        return self.operation.flops / self.time


def limit(operation: Operation, machine: Machine) -> Limit:
    """Return the floor of an operation's time on a GPU.

    Raises
    ------
    GpuguideError
        If the GPU has no rate for the format, or no such connection.
    """
    if operation.through not in machine.bandwidth:
        raise GpuguideError(f"The bandwidth of the {operation.through} of {machine.name} is not known.")
    return Limit(operation, machine.rate(operation.format), machine.bandwidth[operation.through], machine.launch)


# --- operations ------------------------------------------------------------------------------------------


def matmul(rows: int, inner: int, columns: int, format: str = "bf16") -> Operation:
    """Return the cost of a ``(rows, inner) @ (inner, columns)`` product."""
    _sizes(rows=rows, inner=inner, columns=columns)
    _choice("format", format, tuple(FORMATS))
    moved = roofline.matmul_bytes(rows, inner, columns, ELEMENT_SIZE[format])
    return Operation(roofline.matmul_flops(rows, inner, columns), moved, "memory", format)


def attention(
    batch: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    seq_len: int,
    causal: bool = True,
    format: str = "bf16",
) -> Operation:
    """Return the cost of fused attention, forward: the scores never leave the chip.

    Two products a head, ``(seq_len, head_dim) @ (head_dim, seq_len)`` and back. With a causal mask each position
    meets those before it and itself.
    """
    _sizes(batch=batch, heads=heads, kv_heads=kv_heads, head_dim=head_dim, seq_len=seq_len)
    _choice("format", format, tuple(FORMATS))
    if heads % kv_heads:
        raise GpuguideError(f"kv_heads is {kv_heads}; it must divide the {heads} heads.")
    pairs = seq_len * (seq_len + 1) / 2 if causal else float(seq_len) ** 2
    moved = batch * seq_len * head_dim * (2 * heads + 2 * kv_heads) * ELEMENT_SIZE[format]
    return Operation(4.0 * batch * heads * head_dim * pairs, moved, "memory", format)


def decode_step(shape: Shape, batch: int, context: int, weights: str = "bf16", cache: str = "bf16") -> Operation:
    """Return the cost of one token for each of ``batch`` sequences, with ``context`` positions already in the cache.

    All weights are read once for the whole batch, the embedding aside, of which a row a sequence is; and the keys
    and values of every sequence. Arithmetic is in bf16 (in fp32 with fp32 weights), also where weights are stored in
    fewer bits.
    """
    _sizes(batch=batch, context=context)
    _choice("weights", weights, WEIGHTS)
    _choice("cache", cache, CACHES)
    if context > shape.context:
        raise GpuguideError(f"context is {context}; the model knows {shape.context} positions.")
    whole = local(shape, 1)
    matrices = shape.layers * whole.matrices
    rest = STORED["fp32" if weights == "fp32" else "bf16"]
    others = shape.layers * (whole.layer - whole.matrices) + whole.norm
    read = matrices * STORED[weights] + (others + whole.head + batch * shape.hidden) * rest
    cached = 2.0 * shape.layers * shape.keys * batch * (context + 1) * STORED[cache]
    flops = 2.0 * batch * (matrices + whole.head) + 4.0 * shape.layers * batch * shape.queries * (context + 1)
    return Operation(flops, read + cached, "memory", "fp32" if weights == "fp32" else "bf16")


def all_reduce(size: int, gpus: int, format: str = "bf16") -> Operation:
    """Return the cost, on each of ``gpus`` GPUs, of adding up ``size`` bytes over all of them.

    The ring sends ``2 (gpus - 1) / gpus`` of the bytes, and no algorithm that works on the GPUs alone sends fewer.
    """
    _sizes(size=size, gpus=gpus)
    _choice("format", format, tuple(FORMATS))
    if gpus < 2:
        raise GpuguideError(f"gpus is {gpus}; an all-reduce needs at least 2.")
    share = (gpus - 1) / gpus
    return Operation(share * size / ELEMENT_SIZE[format], 2 * share * size, "link", format)


def scan(rows: int, columns: int, element_size: int = 8, place: str = "memory") -> Operation:
    """Return the cost of reading columns of a table once and adding each up.

    Parameters
    ----------
    rows, columns : int
        What is read.
    element_size : int
        Bytes a value, from 1 to 16.
    place : str
        Where the table is: in the GPU's ``memory``, or at the ``host``.
    """
    _sizes(rows=rows, columns=columns, element_size=element_size)
    _choice("place", place, PLACES)
    if element_size > 16:
        raise GpuguideError(f"element_size is {element_size}; a value has from 1 to 16 bytes.")
    values = float(rows) * columns
    return Operation(values, values * element_size, place, "fp32")


def _sizes(**sizes: int) -> None:
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= LARGEST:
            raise GpuguideError(f"{name} is {size}; it must be a whole number from 1 to {LARGEST}.")


def _choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise GpuguideError(f"{name} is {value}; choose one of {', '.join(choices)}.")
