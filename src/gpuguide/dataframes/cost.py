"""Where an operation on a frame is done sooner: on the host or on a GPU, and from how many rows on.

Three quantities decide. An operation has a price that does not depend on the rows (a call of Python, a plan, launches
of kernels); it has a price for each row; and data that is not where the work is done must be brought there, and its
result back, over a connection with a bandwidth. All are measured: :func:`fitted` takes them from times.

>>> host = {("pandas", "sort"): Line(1e-4, 1e-7)}
>>> gpu = {("cudf", "sort"): Line(1e-3, 1e-9)}
>>> copies = {"cudf": Line(0.0, 1 / 10e9)}
>>> machine = Machine(host, gpu, copies, copies)
>>> where_to_run("sort", 100_000_000, resident=True, machine=machine).place
'gpu'
>>> round(crossover("sort", resident=True, returned=False, machine=machine))
9091
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from gpuguide.dataframes import operations
from gpuguide.dataframes.data import KEYS, MISSING_FROM_LOOKUP, NAMES, ROWS_AN_ID
from gpuguide.errors import GpuguideError, unknown

Place = Literal["cpu", "gpu"]
WIDTH = {
    "key": 4.0,
    "id": 8.0,
    "value": 8.0,
    "weight": 8.0,
    "count": 8.0,
    "sum": 8.0,
    "mean": 8.0,
    "length": 4.0,
    "name": 4.0 + sum(len(name.encode()) for name in NAMES) / len(NAMES),
}
"""Bytes a row of each column; of text its characters and an offset"""
LARGEST = 10**12
"""Rows above which no crossover is sought"""


# --- bytes -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Traffic:
    """The bytes that an operation must move, whatever the algorithm: inputs read once, results written once."""

    read: float
    written: float

    def floor(self, bandwidth: float) -> float:
        """Return the seconds that this takes at least, with the bandwidth of the memory in B/s."""
        return (self.read + self.written) / bandwidth


def rows_of_result(operation: str, rows: int) -> float:
    """Return how many rows the result has, for the frames of :func:`gpuguide.dataframes.data.frame`."""
    shares = {
        "filter": 1 - operations.THRESHOLD,
        "join": 1 - 1 / MISSING_FROM_LOOKUP,
        "sort": 1.0,
        "window": 1.0,
        "string": sum(operations.PATTERN in name for name in NAMES) / len(NAMES),
        "groupby-many": 1 / ROWS_AN_ID,
    }
    name = operations.get(operation).name
    return rows * shares[name] if name in shares else float(min(rows, KEYS))


def bytes_in(operation: str, rows: int) -> float:
    """Return the bytes of the columns that an operation needs, its second table included."""
    asked = operations.get(operation)
    lookup = rows / ROWS_AN_ID * (1 - 1 / MISSING_FROM_LOOKUP) * (WIDTH["id"] + WIDTH["weight"])
    return rows * sum(WIDTH[column] for column in asked.columns) + (lookup if asked.has_lookup else 0.0)


def bytes_out(operation: str, rows: int) -> float:
    """Return the bytes of an operation's result."""
    return rows_of_result(operation, rows) * sum(WIDTH[name] for name in operations.get(operation).result_columns)


def traffic(operation: str, rows: int) -> Traffic:
    """Return the bytes that an operation must read and write."""
    return Traffic(bytes_in(operation, rows), bytes_out(operation, rows))


# --- what is measured ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Line:
    """A time that grows with an amount: ``overhead + each * amount``."""

    overhead: float
    """Seconds, whatever the amount"""
    each: float
    """Seconds for each row or byte: one over the rate"""

    def at(self, amount: float) -> float:
        """Return the seconds for an amount."""
        return self.overhead + self.each * amount


@dataclass(frozen=True)
class Machine:
    """What was measured on one machine."""

    host: Mapping[tuple[str, str], Line]
    """By engine and operation: seconds against rows, where the frame is in the host's memory"""
    gpu: Mapping[tuple[str, str], Line]
    """The same on the GPU, where the frame is in its memory"""
    to_gpu: Mapping[str, Line]
    """By engine of the GPU: seconds against bytes. An engine that is not here was measured on resident frames only."""
    from_gpu: Mapping[str, Line]
    """The same for results on their way back"""


@dataclass(frozen=True)
class Measurement:
    """One measured time."""

    engine: str
    operation: str
    rows: int
    transfer: str
    """``none``, ``in`` or ``in-out``"""
    seconds: float


def fit_line(amounts: Sequence[float], seconds: Sequence[float]) -> Line:
    """Return the line whose relative errors are smallest, so that short times count as much as long ones.

    The squares of ``(overhead + each * amount) / seconds - 1`` are summed up. Neither part may be negative.

    Parameters
    ----------
    amounts, seconds : sequence of float
        As many of each, at least one, all times above 0.

    Raises
    ------
    GpuguideError
        If there is no measurement, or a time is not above 0.
    """
    if len(amounts) != len(seconds) or not amounts or min(seconds) <= 0:
        raise GpuguideError(f"There are {len(amounts)} amounts and {len(seconds)} times; as many, above 0, are needed.")
    fixed, growing = (
        [1 / time for time in seconds],
        [amount / time for amount, time in zip(amounts, seconds, strict=True)],
    )
    ff, gg = sum(part * part for part in fixed), sum(part * part for part in growing)
    fg, f, g = sum(one * other for one, other in zip(fixed, growing, strict=True)), sum(fixed), sum(growing)
    determinant = ff * gg - fg * fg
    if determinant > 1e-12 * ff * gg:
        overhead, each = (gg * f - fg * g) / determinant, (ff * g - fg * f) / determinant
        if overhead >= 0 and each >= 0:
            return Line(overhead, each)
        if each < 0:
            return Line(f / ff, 0.0)
    return Line(0.0, g / gg) if gg else Line(f / ff, 0.0)


def fitted(measurements: Iterable[Measurement], host: Sequence[str], gpu: Sequence[str]) -> Machine:
    """Return a machine's parameters from times of the benchmark ``dataframe``.

    Parameters
    ----------
    measurements : iterable of Measurement
        With ``none`` for all engines; ``in`` and ``in-out`` for at least one of the GPU's.
    host, gpu : sequence of str
        Which engines run where. Others are left out.

    Raises
    ------
    GpuguideError
        If nothing says how an engine of the host, or one of the GPU, or a transfer behaves.
    """
    found = [each for each in measurements if each.engine in (*host, *gpu)]
    lines = {
        (engine, operation): fit_line(*_against_rows(found, engine, operation))
        for engine, operation in {(each.engine, each.operation) for each in found if each.transfer == "none"}
    }
    machine = {
        place: {pair: line for pair, line in lines.items() if pair[0] in names}
        for place, names in (("host", host), ("gpu", gpu))
    }
    for place, known in machine.items():
        if not known:
            raise GpuguideError(f"No time of an operation on the {place} was measured; run the benchmark 'dataframe'.")
    return Machine(
        machine["host"],
        machine["gpu"],
        _transfers(found, gpu, "none", "in", bytes_in),
        _transfers(found, gpu, "in", "in-out", bytes_out),
    )


def _against_rows(found: Iterable[Measurement], engine: str, operation: str) -> tuple[list[float], list[float]]:
    chosen = [m for m in found if (m.engine, m.operation, m.transfer) == (engine, operation, "none")]
    return [float(each.rows) for each in chosen], [each.seconds for each in chosen]


def _transfers(
    found: Iterable[Measurement],
    engines: Sequence[str],
    without: str,
    including: str,
    size: Callable[[str, int], float],
) -> dict[str, Line]:
    """Return what a copy costs each engine against bytes: the difference of times with it and without."""
    times = {(each.engine, each.operation, each.rows, each.transfer): each.seconds for each in found}
    points: dict[str, tuple[list[float], list[float]]] = {}
    for (engine, operation, rows, transfer), time in times.items():
        before = times.get((engine, operation, rows, without))
        if engine in engines and transfer == including and before is not None and time > before:
            amounts, seconds = points.setdefault(engine, ([], []))
            amounts.append(size(operation, rows))
            seconds.append(time - before)
    if not points:
        raise GpuguideError(f"No transfer was measured; run the benchmark 'dataframe' with transfer={including}.")
    return {engine: fit_line(*each) for engine, each in points.items()}


# --- the choice ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Choice:
    """Where to run an operation."""

    place: Place
    engine: str
    """The fastest there"""
    host_seconds: float
    """Predicted for the fastest engine on the host"""
    gpu_seconds: float
    """Predicted for the fastest on the GPU, with transfers"""
    transfer_seconds: float
    """The part of it that transfers take"""
    reason: str
    """A sentence"""


def where_to_run(
    operation: str, rows: int, *, resident: bool, machine: Machine, returned: bool | None = None
) -> Choice:
    """Return where an operation is done sooner, with the predicted times and the reason.

    Parameters
    ----------
    operation : str
        Of :data:`gpuguide.dataframes.operations.OPERATIONS`.
    rows : int
        Of the frame.
    resident : bool
        Whether the frame is in the GPU's memory already. If not, it must be copied there. For the host it is always
        taken to be in the host's memory.
    machine : Machine
        What was measured, from :func:`fitted`.
    returned : bool, optional
        Whether the result must come back to the host. By default it must if the frame was there.

    Raises
    ------
    GpuguideError
        If there is no such operation, it was not measured, or the number of rows is negative.
    """
    if rows < 0:
        raise GpuguideError(f"A frame cannot have {rows} rows; give 0 or more.")
    comes_back = not resident if returned is None else returned
    host_engine, host = _soonest({engine: line.at(rows) for engine, line in _lines(machine.host, operation).items()})
    moving = {
        engine: copies
        for engine in _lines(machine.gpu, operation)
        if (copies := transfer_time(engine, operation, rows, machine, resident=resident, returned=comes_back))
        < math.inf
    }
    if not moving:
        raise GpuguideError(f"No engine of the GPU was measured with the copies of {operation!r}; say resident=True.")
    work = {engine: machine.gpu[engine, operation].at(rows) for engine in moving}
    gpu_engine, on_gpu = _soonest({engine: work[engine] + moving[engine] for engine in moving})
    place: Place = "gpu" if on_gpu < host else "cpu"
    if place == "gpu":
        reason = f"The GPU saves more time than {'the transfer' if moving[gpu_engine] else 'its overhead'} costs."
    elif work[gpu_engine] < host:
        reason = "The GPU would be faster, but not by as much as the transfer takes."
    else:
        reason = "There are too few rows: the GPU's overhead is longer than the host's whole work."
    engine = gpu_engine if place == "gpu" else host_engine
    return Choice(place, engine, host, on_gpu, moving[gpu_engine], reason)


def transfer_time(engine: str, operation: str, rows: int, machine: Machine, *, resident: bool, returned: bool) -> float:
    """Return the predicted seconds of an engine's copies to and from the GPU; infinite if they were not measured."""
    needed = [] if resident else [(machine.to_gpu, bytes_in)]
    needed += [(machine.from_gpu, bytes_out)] if returned else []
    return sum(lines[engine].at(size(operation, rows)) if engine in lines else math.inf for lines, size in needed)


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


def crossover(operation: str, *, resident: bool, machine: Machine, returned: bool | None = None) -> float:
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


Point = tuple[str, int, str]
"""An operation, rows, and what is transferred"""


def verdicts(
    measurements: Iterable[Measurement], machine: Machine, host: Sequence[str], gpu: Sequence[str]
) -> dict[Point, bool]:
    """Return where :func:`where_to_run` names the place at which an operation was measured to be done sooner.

    Every combination of operation, rows and transfer counts once, if it was measured on the GPU, and on the host
    without transfer. Parameters as for :func:`fitted`.
    """
    on_host: dict[tuple[str, int], float] = {}
    on_gpu: dict[Point, float] = {}
    for each in measurements:
        pair, triple = (each.operation, each.rows), (each.operation, each.rows, each.transfer)
        if each.engine in host and each.transfer == "none":
            on_host[pair] = min(each.seconds, on_host.get(pair, math.inf))
        elif each.engine in gpu:
            on_gpu[triple] = min(each.seconds, on_gpu.get(triple, math.inf))
    right = {}
    for (operation, rows, transfer), seconds in on_gpu.items():
        if (operation, rows) in on_host:
            choice = where_to_run(
                operation, rows, resident=transfer == "none", returned=transfer == "in-out", machine=machine
            )
            right[operation, rows, transfer] = choice.place == ("gpu" if seconds < on_host[operation, rows] else "cpu")
    return right


def unseen_verdicts(measurements: Sequence[Measurement], host: Sequence[str], gpu: Sequence[str]) -> dict[Point, bool]:
    """Return the verdicts on each number of rows by a machine that was fitted without it.

    Parameters as for :func:`fitted`; at least two numbers of rows must have been measured.
    """
    found: dict[Point, bool] = {}
    for rows in sorted({each.rows for each in measurements}):
        others = fitted([each for each in measurements if each.rows != rows], host, gpu)
        found |= verdicts([each for each in measurements if each.rows == rows], others, host, gpu)
    return found


def share_right(
    measurements: Iterable[Measurement], machine: Machine, host: Sequence[str], gpu: Sequence[str]
) -> float:
    """Return how many of the :func:`verdicts` are right, as a share of all.

    Raises
    ------
    GpuguideError
        If nothing can be compared.
    """
    right = verdicts(measurements, machine, host, gpu)
    if not right:
        raise GpuguideError("No operation was measured both on the host and on the GPU.")
    return sum(right.values()) / len(right)
