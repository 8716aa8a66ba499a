"""Frames and their sizes, rates and cuDF's contenders, which the benchmarks of dataframes share."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from gpuguide.dataframes import cost, data, engines, operations
from gpuguide.dataframes.kernels import GroupTotals
from gpuguide.dataframes.libraries import library
from gpuguide.hardware.device import Device
from gpuguide.measure.benchmark import Contender, Keys, Work
from gpuguide.measure.records import Rate

ROWS = (10**4, 10**5, 10**6, 10**7, 10**8)
IN_MEMORY = 8
"""Times its own size that a frame takes on the GPU: of up to four contenders the frame, a result and what it needs"""


def rows_of(keys: Keys) -> int:
    """Return how many rows a case has."""
    return int(keys["rows"])


@functools.lru_cache(maxsize=len(data.COLUMNS))
def column(name: str, rows: int) -> Any:
    """Return a column. Those of the last size are kept for the next operation."""
    return data.frame(rows, columns=(name,))[name]


@functools.lru_cache(maxsize=1)
def tables(operation: str, rows: int) -> tuple[Any, Any]:
    """Return the frame and the lookup of a case. The last ones are kept for the next contender."""
    asked = operations.get(operation)
    table = library("pyarrow").table({name: column(name, rows) for name in asked.columns})
    return table, data.lookup(rows) if asked.has_lookup else None


@functools.lru_cache(maxsize=1)
def right_rows(operation: str, rows: int) -> int:
    """Return how many rows the result of a case has."""
    return operations.result_rows(operation, *tables(operation, rows))


def rates(keys: Keys) -> dict[str, Rate]:
    """Return rows, and where nothing is transferred the bytes that must move."""
    name, rows = str(keys["op"]), rows_of(keys)
    moved = cost.traffic(name, rows)
    bandwidth = {"bandwidth": Rate("B/s", moved.read + moved.written)} if keys["transfer"] == "none" else {}
    return {"throughput": Rate("row/s", rows), **bandwidth}


def count_rows(result: Any) -> int:
    """Return how many rows a result has; of our group-by, groups that have any."""
    return int(result.count.count_nonzero()) if isinstance(result, GroupTotals) else len(result)


def with_cudf(
    build: Callable[[Device, Keys], Work],
    skip_reason: Callable[[Device, Keys], str | None] = lambda device, keys: None,
    *libraries: str,
) -> Contender:
    """Return a contender that needs cuDF, and other libraries before it."""
    return Contender(build, ON_GPU, skip_reason, (*libraries, *CUDF), lambda: engines.why_not_here("cudf"))


ON_GPU = frozenset({"gpu"})
CUDF = ("cudf", "rmm", "pyarrow")
"""Libraries of every contender on the GPU: cuDF with its allocator, and Arrow, of which its frames are made"""
