"""Dataframes on the host and on a GPU: the same operations on several libraries, and when a GPU pays.

:func:`load` takes an Arrow table to one of the engines, :func:`run` does an operation there, and
:func:`gpuguide.dataframes.cost.where_to_run` says beforehand where it is done sooner.
:class:`~gpuguide.dataframes.query.Query` does the same with the columns of one's own table or Parquet file.

>>> from gpuguide import dataframes
>>> from gpuguide.dataframes import data
>>> table = data.frame(1000, columns=("key", "id", "value"))
>>> len(dataframes.run("sort", table, engine="pandas"))
1000
"""

from __future__ import annotations

from typing import Any

from gpuguide.dataframes import data, operations
from gpuguide.dataframes import engines as available
from gpuguide.dataframes.engines import DataframeEngine
from gpuguide.dataframes.engines.cudf_frames import CuDF, check_fits
from gpuguide.dataframes.query import Query, QueryChoice, where_to_run

__all__ = ["Query", "QueryChoice", "load", "run", "where_to_run"]


def load(table: Any, engine: DataframeEngine) -> Any:
    """Return an Arrow table as a frame of an engine, after a look at its types and numbers.

    Parameters
    ----------
    table : pyarrow.Table
        NaN counts as a missing value.
    engine : DataframeEngine
        From :func:`gpuguide.dataframes.engines.engine`.

    Raises
    ------
    GpuguideError
        If a column has a type that not every engine takes, a sum of integers might not fit 64 bits, or the frame does
        not fit the GPU.
    """
    return engine.load(data.normalize_table(table))


def run(operation: str, table: Any, lookup: Any | None = None, *, engine: str) -> Any:
    """Do an operation on Arrow tables, and return the result as the engine gives it.

    The operations are those that are measured, on the frame that they are measured on: each knows its columns by name,
    ``key`` to group by, ``id`` to group by or join on, ``value`` to compare, sort and add up, ``name`` to search. Give
    your own columns these names first: ``table.rename_columns({"price": "value"})``. Other columns come along in a
    filter, a join, a sort, a search and a window.

    Parameters
    ----------
    operation : str
        Of :data:`gpuguide.dataframes.operations.OPERATIONS`.
    table : pyarrow.Table
        With the columns that the operation needs: :attr:`gpuguide.dataframes.operations.DataframeOperation.columns`.
    lookup : pyarrow.Table, optional
        The second table of a join, with ``id``.
    engine : str
        Of :data:`gpuguide.dataframes.engines.ENGINES`.

    Raises
    ------
    GpuguideError
        As :func:`load`; or if there is no such operation or engine, the engine cannot run here, or a table lacks what
        is needed.
    """
    asked = operations.get(operation)
    operations.check_columns(asked, table, lookup)
    chosen = available.engine(engine)
    if isinstance(chosen, CuDF):
        check_fits(table.nbytes, table.num_rows, chosen.free_memory(), operation)
    frame = load(table, chosen)
    other = load(lookup, chosen) if asked.has_lookup else None
    return available.call(chosen, operation, frame, other)()
