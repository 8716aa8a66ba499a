"""How often the choice of a place is right for whole queries on a file, which its measured times do not contain.

The choice needs a schema, a number of rows and Parquet's statistics. A file of few rows has all of these but the number
of rows, so that no file of a hundred million rows is written to ask.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from gpuguide.benchmarks.dataframes.queries import GROUPS, QUERIES, make_row_group, write_joined
from gpuguide.dataframes import Query, where_to_run
from gpuguide.dataframes.cost import MachineParameters
from gpuguide.dataframes.libraries import library
from gpuguide.dataframes.query.choice import ON_GPU
from gpuguide.dataframes.query.source import Source
from gpuguide.measure.records import Record

WRITTEN_ROWS = 10**5
"""Rows of the small file, with the values that a frame of all rows has"""


@dataclass(frozen=True)
class QueryPlaces:
    """Where a query was measured to be done first, and where it was expected to be."""

    query: str
    rows: int
    host: str
    """The fastest engine on the host"""
    host_seconds: float
    gpu: str
    """The fastest engine on the GPU"""
    gpu_seconds: float
    chosen: str
    """The engine that :func:`~gpuguide.dataframes.query.choice.where_to_run` names"""

    @property
    def is_right(self) -> bool:
        """Whether the chosen engine works where the query was done first."""
        return (self.chosen in ON_GPU) == (self.gpu_seconds < self.host_seconds)


def compare_places(record: Record, machine: MachineParameters) -> list[QueryPlaces]:
    """Return both places of each query and number of rows that a record of ``frame-queries`` has.

    Parameters
    ----------
    record : Record
        Of ``frame-queries``. A case that no engine of a place has is left out.
    machine : MachineParameters
        What the choice goes by.
    """
    times: dict[tuple[str, int], dict[str, float]] = {}
    for engine in dict.fromkeys(case.contender for case in record.cases):
        for case in record.cases_of(engine):
            key = str(case.keys["query"]), int(case.keys["rows"])
            times.setdefault(key, {})[engine] = case.metrics["time"].summary.median
    chosen = {rows: choose_engines(rows, machine) for rows in {rows for _, rows in times}}
    found = []
    for (name, rows), seconds in times.items():
        fastest_first = sorted(seconds, key=seconds.__getitem__)
        host = next((engine for engine in fastest_first if engine not in ON_GPU), None)
        gpu = next((engine for engine in fastest_first if engine in ON_GPU), None)
        if host and gpu:
            found.append(QueryPlaces(name, rows, host, seconds[host], gpu, seconds[gpu], chosen[rows][name]))
    return found


def choose_engines(rows: int, machine: MachineParameters) -> dict[str, str]:
    """Return the engine that the choice names for each query of ``frame-queries`` on so many rows."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        frame = Query(with_rows(write_few_rows(folder, rows).source, rows))
        return {query: where_to_run(add(frame, folder), machine=machine).engine for query, add in QUERIES.items()}


def with_rows(source: Source, rows: int) -> Source:
    """Return a source as if it had so many rows, with the statistics of those that it has."""
    return replace(source, rows=rows, row_groups=())


def write_few_rows(folder: Path, rows: int) -> Query:
    """Write the last rows of a frame and the tables that it is joined with; return a query of those rows."""
    arrow = library("pyarrow")
    many = max(1, rows // GROUPS)
    few_texts = arrow.array([f"id{number:03d}" for number in range(GROUPS + 1)])
    many_texts = arrow.array([f"id{number:010d}" for number in range(many + 1)])
    table = make_row_group(max(0, rows - WRITTEN_ROWS), rows, few_texts, many_texts)
    library("pyarrow.parquet").write_table(table, folder / "frame.parquet")
    write_joined(folder / "small.parquet", "id4", GROUPS)
    write_joined(folder / "medium.parquet", "id6", many)
    return Query(folder / "frame.parquet")
