"""What every engine can do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from gpuguide.dataframes import data, operations
from gpuguide.errors import GpuguideError

CHECKED_ROWS = 20_000
"""Of the frame on which an engine is compared with the reference"""
CHECKED_NULLS = 0.05
TRANSFERS = ("none", "in", "in-out")
"""Whether a frame and its result are copied between the host and the engine as a part of the call"""

UserFunction = Callable[[float], float]


class DataframeEngine(Protocol):
    """One dataframe library. Its methods call the library's own and do nothing else with the data.

    A frame is whatever the library works on; :meth:`load` makes one from an Arrow table that
    :func:`gpuguide.dataframes.data.normalize_table` returned. What each operation returns stands in
    :data:`gpuguide.dataframes.operations.OPERATIONS`.
    """

    name: str
    place: str
    """``cpu`` or ``gpu``"""

    def load(self, table: Any) -> Any:
        """Return an Arrow table as a frame."""

    def unload(self, result: Any) -> Any:
        """Return a frame or a result as an Arrow table in the host's memory."""

    def wait(self) -> None:
        """Return when all that was asked for is done."""

    def filter(self, frame: Any) -> Any:
        """Keep the rows whose value is large."""

    def group_by(self, frame: Any, key: str) -> Any:
        """Count and add up the values of each key."""

    def join(self, frame: Any, lookup: Any) -> Any:
        """Put rows beside those of the lookup with the same id."""

    def sort(self, frame: Any) -> Any:
        """Order the rows by value."""

    def filter_group_by(self, frame: Any) -> Any:
        """Count and add up the large values of each key."""

    def search(self, frame: Any) -> Any:
        """Find names and count their characters."""

    def window(self, frame: Any) -> Any:
        """Put the mean of its key beside each row."""

    def apply(self, frame: Any, function: UserFunction) -> Any:
        """Return the frame with ``result``, a user's function of each value. Missing values stay missing.

        Raises
        ------
        GpuguideError
            If the engine cannot run the function.
        """


def cannot_run(engine: str, function: UserFunction, error: Exception, instead: str) -> GpuguideError:
    """Return the refusal of a user's function: which one, what the library said, and what to do instead."""
    name, said = getattr(function, "__name__", repr(function)), str(error).splitlines() or ["no message"]
    return GpuguideError(
        f"{engine} cannot run the function {name!r} on column 'value' ({type(error).__name__}: {said[0]}). {instead}"
    )


def call(engine: DataframeEngine, operation: str, frame: Any, lookup: Any = None) -> Callable[[], Any]:
    """Return a call without arguments that does an operation of :data:`gpuguide.dataframes.operations.OPERATIONS`.

    Raises
    ------
    GpuguideError
        If there is no such operation.
    """
    calls: dict[str, Callable[[], Any]] = {
        "filter": lambda: engine.filter(frame),
        "groupby": lambda: engine.group_by(frame, "key"),
        "groupby-many": lambda: engine.group_by(frame, "id"),
        "join": lambda: engine.join(frame, lookup),
        "sort": lambda: engine.sort(frame),
        "filter-groupby": lambda: engine.filter_group_by(frame),
        "string": lambda: engine.search(frame),
        "window": lambda: engine.window(frame),
    }
    return calls[operations.get(operation).name]


def call_with_transfer(
    engine: DataframeEngine, operation: str, table: Any, lookup: Any, transfer: str
) -> Callable[[], Any]:
    """Return a call that does an operation on Arrow tables, and copies as much as ``transfer`` says.

    Parameters
    ----------
    engine : DataframeEngine
        That does it.
    operation : str
        Of :data:`gpuguide.dataframes.operations.OPERATIONS`.
    table, lookup : pyarrow.Table
        From :func:`gpuguide.dataframes.data.normalize_table`; ``lookup`` for a join.
    transfer : str
        ``none``: the frame is loaded now, and the result stays with the engine. ``in``: every call loads it.
        ``in-out``: it brings back the result as well.
    """

    def load() -> tuple[Any, Any]:
        return engine.load(table), None if lookup is None else engine.load(lookup)

    if transfer == "none":
        return call(engine, operation, *load())
    if transfer == "in":
        return lambda: call(engine, operation, *load())()
    return lambda: engine.unload(call(engine, operation, *load())())


def check(engine: DataframeEngine, operation: str, rows: int = CHECKED_ROWS) -> None:
    """Compare an engine with the reference, on a frame with missing values.

    Raises
    ------
    AssertionError
        If they differ; the message says where.
    """
    asked = operations.get(operation)
    table = data.normalize_table(data.frame(rows, columns=asked.columns, nulls=CHECKED_NULLS, nans=CHECKED_NULLS))
    lookup = data.lookup(rows) if asked.has_lookup else None
    found = call_with_transfer(engine, operation, table, lookup, "in-out")()
    different = operations.difference(operation, found, operations.reference(operation, table, lookup))
    assert different is None, f"{operation} on {engine.name}: {different}"
