"""A machine's prices as lines, and the lines from measured times."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpuguide.dataframes.cost.files import FilePrices
from gpuguide.dataframes.cost.sizes import bytes_in, bytes_out
from gpuguide.errors import GpuguideError


@dataclass(frozen=True)
class Line:
    """A time that grows with an amount: ``overhead + each * amount``."""

    overhead: float
    """Seconds, whatever the amount"""
    each: float
    """Seconds for each row or byte: one over the rate"""

    def predict(self, amount: float) -> float:
        """Return the seconds for an amount."""
        return self.overhead + self.each * amount


@dataclass(frozen=True)
class MachineParameters:
    """What was measured on one machine."""

    host: Mapping[tuple[str, str], Line]
    """By engine and operation: seconds against rows, where the frame is in the host's memory"""
    gpu: Mapping[tuple[str, str], Line]
    """The same on the GPU, where the frame is in its memory"""
    to_gpu: Mapping[str, Line]
    """By engine of the GPU: seconds against bytes. An engine that is not here was measured on resident frames only."""
    from_gpu: Mapping[str, Line]
    """The same for results on their way back"""
    files: Mapping[str, FilePrices] = field(default_factory=dict)
    """By engine: what queries on Parquet files take; empty if none were measured"""


@dataclass(frozen=True)
class Measurement:
    """One measured time."""

    engine: str
    operation: str
    rows: int
    transfer: str
    """``none``, ``in`` or ``in-out``"""
    seconds: float


def read_measurements(cases: Iterable[Any]) -> list[Measurement]:
    """Return the times of a record of the benchmark ``dataframe``, from its cases."""
    return [
        Measurement(
            case.contender,
            str(case.keys["op"]),
            int(case.keys["rows"]),
            str(case.keys["transfer"]),
            case.measured["time"].summary.median,
        )
        for case in cases
        if case.status == "ok"
    ]


def fit_line(amounts: Sequence[float], seconds: Sequence[float], measured: Sequence[float] | None = None) -> Line:
    """Return the line whose relative errors are smallest, so that short times count as much as long ones.

    The squares of ``(overhead + each * amount - seconds) / measured`` are summed up. Neither part may be negative.

    Parameters
    ----------
    amounts, seconds : sequence of float
        As many of each, at least one.
    measured : sequence of float, optional
        Where ``seconds`` are differences of two times, the longer of each two, all above 0: what a time is wrong by
        grows with that time, however small the difference. By default ``seconds``.

    Raises
    ------
    GpuguideError
        If there is no measurement, or a time is not above 0.
    """
    measured = seconds if measured is None else measured
    if not len(amounts) == len(seconds) == len(measured) or not amounts or min(measured) <= 0:
        raise GpuguideError(f"There are {len(amounts)} amounts and {len(seconds)} times; as many, above 0, are needed.")
    fixed = [1 / time for time in measured]
    growing = [amount / time for amount, time in zip(amounts, measured, strict=True)]
    wanted = [part / time for part, time in zip(seconds, measured, strict=True)]
    ff, fg, gg = _product(fixed, fixed), _product(fixed, growing), _product(growing, growing)
    f, g = _product(fixed, wanted), _product(growing, wanted)
    determinant = ff * gg - fg * fg
    if determinant > 1e-12 * ff * gg:
        overhead, each = (gg * f - fg * g) / determinant, (ff * g - fg * f) / determinant
        if overhead >= 0 and each >= 0:
            return Line(overhead, each)
        if each < 0:
            return Line(max(f / ff, 0.0), 0.0)
    return Line(0.0, max(g / gg, 0.0)) if gg else Line(max(f / ff, 0.0), 0.0)


def _product(one: Sequence[float], other: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


def fit_parameters(measurements: Iterable[Measurement], host: Sequence[str], gpu: Sequence[str]) -> MachineParameters:
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
        (engine, operation): fit_line(*_times_by_rows(found, engine, operation))
        for engine, operation in {(each.engine, each.operation) for each in found if each.transfer == "none"}
    }
    machine = {
        place: {pair: line for pair, line in lines.items() if pair[0] in names}
        for place, names in (("host", host), ("gpu", gpu))
    }
    for place, known in machine.items():
        if not known:
            raise GpuguideError(f"No time of an operation on the {place} was measured; run the benchmark 'dataframe'.")
    return MachineParameters(
        machine["host"],
        machine["gpu"],
        _transfers(found, gpu, "none", "in", bytes_in),
        _transfers(found, gpu, "in", "in-out", bytes_out),
    )


def _times_by_rows(found: Iterable[Measurement], engine: str, operation: str) -> tuple[list[float], list[float]]:
    chosen = [m for m in found if (m.engine, m.operation, m.transfer) == (engine, operation, "none")]
    return [float(each.rows) for each in chosen], [each.seconds for each in chosen]


def _transfers(
    found: Iterable[Measurement],
    engines: Sequence[str],
    without: str,
    including: str,
    size: Callable[[str, int], float],
) -> dict[str, Line]:
    """Return what a copy costs each engine against bytes: the difference of times with it and without.

    A difference below zero is noise and counts like others: to leave such out would make copies dearer than they are.
    """
    times = {(each.engine, each.operation, each.rows, each.transfer): each.seconds for each in found}
    points: dict[str, tuple[list[float], list[float], list[float]]] = {}
    for (engine, operation, rows, transfer), time in times.items():
        before = times.get((engine, operation, rows, without))
        if engine in engines and transfer == including and before is not None:
            amounts, differences, measured = points.setdefault(engine, ([], [], []))
            amounts.append(size(operation, rows))
            differences.append(time - before)
            measured.append(max(time, before))
    if not points:
        raise GpuguideError(f"No transfer was measured; run the benchmark 'dataframe' with transfer={including}.")
    return {engine: fit_line(*each) for engine, each in points.items()}
