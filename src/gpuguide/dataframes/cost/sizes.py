"""The bytes of frames and results, which an operation must move at least, and the memory that it needs meanwhile."""

from __future__ import annotations

from dataclasses import dataclass

from gpuguide.dataframes import operations
from gpuguide.dataframes.data import KEYS, MISSING_FROM_LOOKUP, NAMES, ROWS_AN_ID

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
ROOM = {
    "filter": 8 + 1 + 4 + 20.0,
    "groupby": 8 + 4 + 20.0,
    "groupby-many": 8 + 4 + 24.0,
    "join": 4 + 8 + 8 + 16 + 8 + 24.0,
    "sort": 3 * (16 + 4.0),
    "filter-groupby": 1 + 4 + 12 + 8 + 4 + 20.0,
    "string": 1 + 4 + WIDTH["name"] + 4,
    "window": 8 + 4 + 4 + 8.0,
}
"""Bytes a row that cuDF takes beside the frame when it needs most, with a result as long as a frame can make it.

Counted from what its algorithms write, as the tutorial on dataframes does: a filter's index, mask, row numbers and
result; of a group-by the table, the place of each row and the result; of a join the counts, places and pairs, the
table of a lookup as long as the frame, and both keys; a sort's pairs and row numbers, thrice. Filter and sort were
watched."""


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


def memory_needed(operation: str, size: float, rows: int) -> float:
    """Return the bytes that an operation takes on a GPU when it needs most, its frame included.

    Parameters
    ----------
    operation : str
        Of :data:`gpuguide.dataframes.operations.OPERATIONS`.
    size : float
        Bytes of the frame. Columns that the operation does not need are there once more in its result.
    rows : int
        Of the frame.
    """
    asked = operations.get(operation)
    own = rows * sum(WIDTH[column] for column in asked.columns)
    return size + rows * ROOM[asked.name] + max(0.0, size - own)
