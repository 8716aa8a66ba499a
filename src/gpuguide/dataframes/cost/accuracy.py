"""How often the choice is right, on what was measured, and how often a rule of thumb is."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpuguide.dataframes.cost.choice import Place, where_to_run
from gpuguide.dataframes.cost.files import QueryTime, fit_files
from gpuguide.dataframes.cost.fitting import MachineParameters, Measurement, fit_parameters

Point = tuple[str, int, str]
"""An operation, rows, and what is transferred"""
RULE_ROWS = 10**6
"""From which on a rule of thumb takes the GPU"""
TOLERATED = 1.1
"""Times the fastest engine's time that the engine named may take for the choice to count as right"""


def verdicts(
    measurements: Iterable[Measurement], machine: MachineParameters, host: Sequence[str], gpu: Sequence[str]
) -> dict[Point, bool]:
    """Return where the choice names the place at which an operation was measured to be done sooner.

    The choice is that of :func:`~gpuguide.dataframes.cost.where_to_run`.

    Every combination of operation, rows and transfer counts once, if it was measured on the GPU, and on the host
    without transfer. Parameters as for :func:`fit_parameters`.
    """
    right = {}
    for (operation, rows, transfer), place in sooner(measurements, host, gpu).items():
        resident, returned = {"none": (None, None), "in": (False, False), "in-out": (False, True)}[transfer]
        choice = where_to_run(operation, rows, resident=resident, returned=returned, machine=machine)
        right[operation, rows, transfer] = choice.place == place
    return right


def sooner(measurements: Iterable[Measurement], host: Sequence[str], gpu: Sequence[str]) -> dict[Point, Place]:
    """Return at which place each operation was measured to be done sooner. Parameters as for :func:`fit_parameters`."""
    on_host: dict[tuple[str, int], float] = {}
    on_gpu: dict[Point, float] = {}
    for each in measurements:
        pair, triple = (each.operation, each.rows), (each.operation, each.rows, each.transfer)
        if each.engine in host and each.transfer == "none":
            on_host[pair] = min(each.seconds, on_host.get(pair, math.inf))
        elif each.engine in gpu:
            on_gpu[triple] = min(each.seconds, on_gpu.get(triple, math.inf))
    return {
        (operation, rows, transfer): "gpu" if seconds < on_host[operation, rows] else "cpu"
        for (operation, rows, transfer), seconds in on_gpu.items()
        if (operation, rows) in on_host
    }


def verdicts_of_rule(
    measurements: Iterable[Measurement], host: Sequence[str], gpu: Sequence[str], rows: int = RULE_ROWS
) -> dict[Point, bool]:
    """Return where a rule of thumb names the right place: the GPU from so many rows on, whatever the operation.

    A model that is worth fitting is right more often. Parameters as for :func:`fit_parameters`; the same points as
    :func:`verdicts`.
    """
    return {
        point: ("gpu" if point[1] >= rows else "cpu") == place
        for point, place in sooner(measurements, host, gpu).items()
    }


def unseen_verdicts(measurements: Sequence[Measurement], host: Sequence[str], gpu: Sequence[str]) -> dict[Point, bool]:
    """Return the verdicts on each number of rows by a machine that was fitted without it.

    Parameters as for :func:`fit_parameters`; at least two numbers of rows must have been measured.
    """
    found: dict[Point, bool] = {}
    for rows in sorted({each.rows for each in measurements}):
        others = fit_parameters([each for each in measurements if each.rows != rows], host, gpu)
        found |= verdicts([each for each in measurements if each.rows == rows], others, host, gpu)
    return found


@dataclass(frozen=True)
class QueryVerdict:
    """What was named for a query that the prices were fitted without, and what was the fastest."""

    named: str
    fastest: str
    longer: float
    """Times the fastest engine's time that the engine named takes"""

    @property
    def right(self) -> bool:
        """Whether the engine named is the fastest, or takes at most 10 % longer."""
        return self.longer <= TOLERATED


def unseen_queries(times: Sequence[QueryTime]) -> dict[tuple[str, int], QueryVerdict]:
    """Return the verdict on each query at each size, by prices that were fitted without that query at any size.

    The engine named is the one whose predicted time is shortest. Engines that were not measured with a query at a size
    are not compared there.
    """
    found = {}
    for query in dict.fromkeys(each.query for each in times):
        prices = fit_files(each for each in times if each.query != query)
        for rows in dict.fromkeys(each.rows for each in times if each.query == query):
            here = [time for time in times if (time.query, time.rows) == (query, rows) and time.engine in prices]
            if here:
                named = min(here, key=lambda time: prices[time.engine].predict(time.amounts)).engine
                found[query, rows] = judge(named, here)
    return found


def verdicts_of_engine(times: Sequence[QueryTime], engine: str) -> dict[tuple[str, int], QueryVerdict]:
    """Return the verdicts of a rule that names the same engine for every query.

    A model that is worth fitting is right more often. A query that the engine was not measured with is left out.
    """
    found = {}
    for query, rows in dict.fromkeys((each.query, each.rows) for each in times if each.engine == engine):
        found[query, rows] = judge(engine, [time for time in times if (time.query, time.rows) == (query, rows)])
    return found


def judge(named: str, times: Sequence[QueryTime]) -> QueryVerdict:
    """Return the verdict on an engine, from the times of one query at one size."""
    measured = {time.engine: time.seconds for time in times}
    fastest = min(measured, key=measured.__getitem__)
    return QueryVerdict(named, fastest, measured[named] / measured[fastest])
