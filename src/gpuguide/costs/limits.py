"""The shortest time that an operation can take on a GPU, and what bounds it.

An operation is counted as arithmetic and as bytes that must move: through memory, over the link to other GPUs, or
from the host. Each has a ceiling, and so has the start of a kernel. All of them can go on at once, so the time is that
of the slowest. How near a program comes is what a benchmark shows.

Memory gives more where bytes are only read than where as many are written (``read`` and ``copy`` of a machine): scans,
decode steps and products with few rows only read, all else counts as a copy.

What is assumed: every operand is read once and every result written once, from and to memory, whatever the caches do;
all arithmetic runs at the rate of matrix products in the operation's format. An operation whose operands are in the L2
cache already can be faster than the limit; one that moves more, or computes in smaller pieces, is far from it.

The formulas stand in ``limits.toml`` beside this module; the calculator on the site computes the same ones.

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

import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib import resources
from typing import Any

from gpuguide.costs.fields import Rule, faults_of, raise_first, read_fields, read_rules
from gpuguide.costs.formulas import Formulas
from gpuguide.costs.memory import Shape
from gpuguide.costs.memory.model import TABLES as MEMORY
from gpuguide.errors import GpuguideError
from gpuguide.hardware.datasheet_ceilings import Ceiling, GpuCeilings

TABLES: Mapping[str, Any] = tomllib.loads(
    resources.files("gpuguide.costs").joinpath("limits.toml").read_text(encoding="utf-8")
)
FIELDS = read_fields(TABLES["fields"])
OPERATIONS: Mapping[str, Mapping[str, Any]] = TABLES["operations"]
LIMIT = Formulas(TABLES["limit"])
WEIGHTS: tuple[str, ...] = FIELDS["weights"].options({})
"""Formats in which the weights of a model may be stored for a decode step"""
CACHES: tuple[str, ...] = FIELDS["cache"].options({})
PLACES: tuple[str, ...] = FIELDS["place"].options({})
ELEMENT_SIZE: Mapping[str, int] = TABLES["constants"]["operand_size"]
"""Bytes a number of an operand or a result. TF32 is a way of computing with numbers stored as FP32."""


@dataclass(frozen=True)
class OperationCost:
    """What an operation costs, whatever the GPU."""

    flops: float
    moved: float
    """Bytes"""
    through: str
    """What the bytes move through: memory where they are only ``read``, or read and written (``copy``), the ``link`` to
    other GPUs, or the connection to the ``host``"""
    format: str
    """Whose rate of arithmetic counts"""
    held: float
    """Bytes that must be in the GPU's memory"""

    @property
    def intensity(self) -> float:
        """Operations for each byte moved, FLOP/B."""
        return self.flops / self.moved


@dataclass(frozen=True)
class Limit:
    """The floor of an operation's time on one GPU."""

    operation: OperationCost
    rate: Ceiling
    """Of arithmetic, FLOP/s"""
    bandwidth: Ceiling
    """B/s"""
    launch: Ceiling | None
    arithmetic_time: float
    """Seconds that the arithmetic takes at its ceiling"""
    moving_time: float
    """Seconds that the bytes take at their ceiling"""
    launch_time: float
    """Seconds to start a kernel; 0 where it is not measured"""
    time: float
    """Seconds at least: the longest of the three"""
    bound: str
    """What takes longest: ``arithmetic``, ``memory``, ``link``, ``host`` or ``launch``"""
    ridge: float
    """Intensity from which on arithmetic is the limit, FLOP/B"""
    throughput: float
    """FLOP/s at best"""


def limit(operation: OperationCost, machine: GpuCeilings) -> Limit:
    """Return the floor of an operation's time on a GPU.

    Raises
    ------
    GpuguideError
        If the GPU has no rate for the format, no such connection, or too little memory for the operands.
    """
    if operation.through not in machine.bandwidth:
        way = "memory" if operation.through in ("copy", "read") else operation.through
        raise GpuguideError(f"The bandwidth of the {way} of {machine.name} is not known.")
    rate, bandwidth = machine.rate(operation.format), machine.bandwidth[operation.through]
    if operation.held > machine.capacity:
        raise GpuguideError(
            f"It does not fit: the operands take {operation.held / 2**30:.1f} GiB, and {machine.name} has "
            f"{machine.capacity / 2**30:.1f} GiB."
        )
    found = LIMIT.values(
        {
            "flops": operation.flops,
            "moved": operation.moved,
            "through": operation.through,
            "peak": rate.value,
            "bandwidth": bandwidth.value,
            "launch": machine.launch.value if machine.launch else 0.0,
        }
    )
    names = ("arithmetic_time", "moving_time", "launch_time", "time", "bound", "ridge", "throughput")
    return Limit(operation, rate, bandwidth, machine.launch, **{name: found[name] for name in names})


# --- operations ------------------------------------------------------------------------------------------


def matmul(rows: int, inner: int, columns: int, format: str = "bf16") -> OperationCost:
    """Return the cost of a ``(rows, inner) @ (inner, columns)`` product."""
    return operation("matmul", {"rows": rows, "inner": inner, "columns": columns, "format": format})


def attention(
    batch: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    seq_len: int,
    causal: bool = True,
    format: str = "bf16",
) -> OperationCost:
    """Return the cost of fused attention, forward: the scores never leave the chip.

    Two products a head, ``(seq_len, head_dim) @ (head_dim, seq_len)`` and back. With a causal mask each position
    meets those before it and itself.
    """
    sizes = {"batch": batch, "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "seq_len": seq_len}
    return operation("attention", {**sizes, "causal": causal, "format": format})


def decode_step(shape: Shape, batch: int, context: int, weights: str = "bf16", cache: str = "bf16") -> OperationCost:
    """Return the cost of one token for each of ``batch`` sequences, with ``context`` positions already in the cache.

    All weights are read once for the whole batch, the embedding aside, of which a row a sequence is; and the keys
    and values of every sequence. Of a mixture of experts those are read that the tokens reach when they are spread
    evenly and by chance. Arithmetic is in bf16 (in fp32 with fp32 weights), also where weights are stored in fewer
    bits.
    """
    return operation("decode", {"batch": batch, "context": context, "weights": weights, "cache": cache}, shape)


def all_reduce(size: int, gpus: int, format: str = "bf16", in_switch: bool = False) -> OperationCost:
    """Return the cost, on each of ``gpus`` GPUs, of adding up ``size`` bytes over all of them.

    The ring sends ``2 (gpus - 1) / gpus`` of the bytes, and no algorithm that works on the GPUs alone sends fewer. A
    switch that adds up by itself (NVLink SHARP) takes the bytes of each GPU once, and sends the sum once.
    """
    return operation("all_reduce", {"size": size, "gpus": gpus, "in_switch": in_switch, "format": format})


def scan(rows: int, columns: int, element_size: int = 8, place: str = "memory") -> OperationCost:
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
    return operation("scan", {"rows": rows, "columns": columns, "element_size": element_size, "place": place})


def operation(name: str, given: Mapping[str, Any], shape: Shape | None = None) -> OperationCost:
    """Return the cost of an operation of ``limits.toml``.

    Parameters
    ----------
    name : str
        One of :data:`OPERATIONS`.
    given : Mapping
        Its fields, a model aside.
    shape : Shape, optional
        The model, where the operation has one.

    Raises
    ------
    GpuguideError
        If a field makes no sense.
    """
    table = OPERATIONS[name]
    # Of a model `context` is what it knows, and of a step what is in the cache.
    model = {**asdict(shape), "tensor_parallel": 1, "cached": given["context"]} if shape else {}
    fields = {field: FIELDS[field] for field in table["first"] if field in given}
    raise_first(faults_of(fields, [], given, formulas(name)))
    values = {**given, **model}
    raise_first(faults_of({}, rules(name), values, formulas(name)))
    found = formulas(name).values(values)
    return OperationCost(*(found[part] for part in ("flops", "moved", "through", "rate", "held")))


@cache
def formulas(name: str) -> Formulas:
    """Return the formulas of an operation, with those of a model's parts."""
    own = {key: text for key, text in OPERATIONS[name].items() if isinstance(text, str) and key != "label"}
    constants = {**MEMORY["constants"], **TABLES["constants"]}
    return Formulas({**MEMORY["formulas"], **own} if "model" in OPERATIONS[name]["first"] else own, constants)


@cache
def rules(name: str) -> list[Rule]:
    """Return what must hold between the fields of an operation."""
    return read_rules(OPERATIONS[name].get("rules", []))
