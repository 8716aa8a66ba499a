"""Where an operation is done sooner, and from how many rows on it is the GPU."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from gpuguide.dataframes import operations
from gpuguide.dataframes.cost.fitting import Line, MachineParameters
from gpuguide.dataframes.cost.sizes import bytes_in, bytes_out
from gpuguide.errors import GpuguideError, unknown

Place = Literal["cpu", "gpu"]
LARGEST = 10**12
"""Rows above which no crossover is sought"""


@dataclass(frozen=True)
class Choice:
    """Where to run an operation."""

    place: Place
    engine: str
    """The fastest there"""
    host_seconds: float
    """Predicted for the fastest engine on the host, with transfers"""
    gpu_seconds: float
    """Predicted for the fastest on the GPU, with transfers"""
    transfer_seconds: float
    """The part of it that transfers take"""
    reason: str
    """A sentence"""
    host_transfer_seconds: float = 0.0
    """The part of ``host_seconds`` that transfers take: of a frame that was on the GPU"""


def where_to_run(
    operation: str, rows: int, *, resident: bool | None, machine: MachineParameters, returned: bool | None = None
) -> Choice:
    """Return where an operation is done sooner, with the predicted times and the reason.

    Both places pay for the copies that they need: of a frame that is not there, and of a result that is wanted
    elsewhere.

    Parameters
    ----------
    operation : str
        Of :data:`gpuguide.dataframes.operations.OPERATIONS`.
    rows : int
        Of the frame.
    resident : bool or None
        Where the frame is: ``True`` in the GPU's memory, so that the host has to fetch it; ``False`` in the host's, so
        that it must be copied to the GPU; ``None`` in both, so that nobody copies it, as in a benchmark without
        transfers.
    machine : MachineParameters
        What was measured, from :func:`~gpuguide.dataframes.cost.fit_parameters`.
    returned : bool, optional
        Whether the result is wanted in the host's memory, or else in the GPU's. By default it is wanted where the frame
        is; of one that is in both, where it was computed.

    Raises
    ------
    GpuguideError
        If there is no such operation, it was not measured, or the number of rows is negative.
    """
    if rows < 0:
        raise GpuguideError(f"A frame cannot have {rows} rows; give 0 or more.")
    wanted_on_host = returned if returned is not None else None if resident is None else not resident
    work_on_host = {engine: line.predict(rows) for engine, line in _lines(machine.host, operation).items()}
    host_engine, host_work = _soonest(work_on_host)
    to_host = host_transfer_time(operation, rows, machine, resident=resident, returned=wanted_on_host)
    host = host_work + to_host
    moving = {
        engine: copies
        for engine in _lines(machine.gpu, operation)
        if (
            copies := transfer_time(
                engine, operation, rows, machine, resident=resident is not False, returned=bool(wanted_on_host)
            )
        )
        < math.inf
    }
    if not moving:
        raise GpuguideError(f"No engine of the GPU was measured with the copies of {operation!r}; say resident=True.")
    work = {engine: machine.gpu[engine, operation].predict(rows) for engine in moving}
    gpu_engine, on_gpu = _soonest({engine: work[engine] + moving[engine] for engine in moving})
    place: Place = "gpu" if on_gpu < host else "cpu"
    if place == "gpu" and on_gpu >= host_work:
        reason = "The host would be faster, but by less than the copies to it and back would take."
    elif place == "gpu":
        reason = f"The GPU saves more time than {'the transfer' if moving[gpu_engine] else 'its overhead'} costs."
    elif work[gpu_engine] < host:
        reason = "The GPU would be faster, but not by as much as the transfer takes."
    else:
        reason = "There are too few rows: the GPU's overhead is longer than the host's whole work."
    engine = gpu_engine if place == "gpu" else host_engine
    return Choice(place, engine, host, on_gpu, moving[gpu_engine], reason, to_host)


def transfer_time(
    engine: str, operation: str, rows: int, machine: MachineParameters, *, resident: bool, returned: bool
) -> float:
    """Return the predicted seconds of an engine's copies to and from the GPU; infinite if they were not measured."""
    needed = [] if resident else [(machine.to_gpu, bytes_in)]
    needed += [(machine.from_gpu, bytes_out)] if returned else []
    return sum(lines[engine].predict(size(operation, rows)) if engine in lines else math.inf for lines, size in needed)


def host_transfer_time(
    operation: str, rows: int, machine: MachineParameters, *, resident: bool | None, returned: bool | None
) -> float:
    """Return the predicted seconds of the copies that work on the host takes; infinite if none were measured.

    A frame on the GPU is fetched, and a result that is wanted there is copied to it, each as the fastest engine does.
    """
    needed = [(machine.from_gpu, bytes_in)] if resident else []
    needed += [(machine.to_gpu, bytes_out)] if returned is False and resident is not None else []
    return sum(
        min((line.predict(size(operation, rows)) for line in lines.values()), default=math.inf)
        for lines, size in needed
    )


def _lines(lines: Mapping[tuple[str, str], Line], operation: str) -> dict[str, Line]:
    """Return the engines that an operation was measured with, and their lines."""
    operations.get(operation)
    known = {engine: line for (engine, name), line in lines.items() if name == operation}
    if not known:
        raise unknown("measured operation", operation, {name for _, name in lines})
    return known


def _soonest(seconds: Mapping[str, float]) -> tuple[str, float]:
    """Return the engine that is done first, and its time."""
    return min(seconds.items(), key=lambda pair: pair[1])


def crossover(
    operation: str, *, resident: bool | None, machine: MachineParameters, returned: bool | None = None
) -> float:
    """Return the number of rows from which on the GPU is faster; infinite if it never is.

    Parameters as for :func:`where_to_run`.
    """

    def gpu_wins(rows: int) -> bool:
        choice = where_to_run(operation, rows, resident=resident, returned=returned, machine=machine)
        return choice.place == "gpu"

    if gpu_wins(0):
        return 0.0
    low, high = 1, 1
    while not gpu_wins(high):
        if high > LARGEST:
            return math.inf
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if gpu_wins(middle) else (middle, high)
    return float(high)
