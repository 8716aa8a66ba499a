"""What an engine takes for a query on Parquet files: a few prices, fitted to measured queries.

The times of single operations hold for frames in memory. From a file, an engine also decodes columns, and may overlap
that with the work of the query, or work on pieces. So the time of a query is a sum of five amounts at an engine's own
prices, of which none is negative. One amount is the seconds that the query's steps take in memory: an engine that
overlaps them with decoding has a price below 1 for it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

import numpy as np

from gpuguide.errors import GpuguideError


@dataclass(frozen=True)
class FileAmounts:
    """What there is to do for a query on Parquet files."""

    numbers: float
    """Bytes in memory of the columns to be decoded, text aside"""
    codes: float
    """The same of text that the file holds as codes of a dictionary"""
    text: float
    """The same of text that the file holds value by value"""
    work: float
    """Seconds that the steps take in memory"""
    query: float = 1.0
    """The query itself, whatever its rows"""


@dataclass(frozen=True)
class FilePrices:
    """What an engine takes for one of each amount: seconds a byte of columns, seconds a second of work, seconds."""

    numbers: float
    codes: float
    text: float
    work: float
    query: float

    def predict(self, amounts: FileAmounts) -> float:
        """Return the seconds of a query, from the files to the result in the host's memory."""
        return sum(getattr(self, part.name) * getattr(amounts, part.name) for part in fields(self))


@dataclass(frozen=True)
class QueryTime:
    """The measured time of a query on Parquet files."""

    engine: str
    query: str
    """Its name: the same at all sizes"""
    rows: int
    amounts: FileAmounts
    seconds: float


def fit_files(times: Iterable[QueryTime]) -> dict[str, FilePrices]:
    """Return the prices of each engine for which the squares of the relative errors add up to least.

    An engine needs as many times as there are prices; one with fewer is left out.
    """
    found: dict[str, list[QueryTime]] = {}
    for time in times:
        found.setdefault(time.engine, []).append(time)
    return {engine: fit_prices(own) for engine, own in found.items() if len(own) >= len(fields(FilePrices))}


def fit_prices(times: Sequence[QueryTime]) -> FilePrices:
    """Return the prices for the times of one engine.

    Raises
    ------
    GpuguideError
        If there is no time, or one is not above 0.
    """
    if not times or min(time.seconds for time in times) <= 0:
        raise GpuguideError(f"There are {len(times)} times of queries; at least one is needed, and all above 0.")
    names = [part.name for part in fields(FilePrices)]
    shares = np.array([[getattr(time.amounts, name) / time.seconds for name in names] for time in times])
    return FilePrices(*map(float, solve_without_negatives(shares)))


def solve_without_negatives(shares: np.ndarray) -> np.ndarray:
    """Return the prices, none below 0, with which the rows of ``shares`` add up to nearly 1 each.

    The best solution is an ordinary least-squares solution for some of the prices, with 0 for the others. There are
    few prices, so every such selection is tried: SciPy's ``nnls`` would be a dependency for this alone.
    """
    count = shares.shape[1]
    scale = np.where(shares.any(axis=0), shares.max(axis=0), 1.0)
    best, least = np.zeros(count), float(len(shares))
    for chosen in itertools.product((False, True), repeat=count):
        if not any(chosen):
            continue
        part = np.flatnonzero(chosen)
        solved = np.linalg.lstsq(shares[:, part] / scale[part], np.ones(len(shares)), rcond=None)[0]
        prices = np.zeros(count)
        prices[part] = solved / scale[part]
        error = float(((shares @ prices - 1) ** 2).sum())
        if solved.min() >= 0 and error < least - 1e-12:
            best, least = prices, error
    return best
