"""Where an operation on a frame is done sooner: on the host or on a GPU, and from how many rows on.

Three quantities decide. An operation has a price that does not depend on the rows (a call of Python, a plan, launches
of kernels); it has a price for each row; and data that is not where the work is done must be brought there, and its
result back, over a connection with a bandwidth. All are measured: :func:`~gpuguide.dataframes.cost.fit_parameters`
takes them from times.

>>> host = {("pandas", "sort"): Line(1e-4, 1e-7)}
>>> gpu = {("cudf", "sort"): Line(1e-3, 1e-9)}
>>> copies = {"cudf": Line(0.0, 1 / 10e9)}
>>> machine = MachineParameters(host, gpu, copies, copies)
>>> where_to_run("sort", 100_000_000, resident=True, machine=machine).place
'gpu'
>>> round(crossover("sort", resident=None, machine=machine))
9091
"""

from __future__ import annotations

from gpuguide.dataframes.cost.accuracy import (
    RULE_ROWS,
    TOLERATED,
    Point,
    QueryVerdict,
    sooner,
    unseen_queries,
    unseen_verdicts,
    verdicts,
    verdicts_of_engine,
    verdicts_of_rule,
)
from gpuguide.dataframes.cost.choice import (
    LARGEST,
    Choice,
    Place,
    crossover,
    host_transfer_time,
    transfer_time,
    where_to_run,
)
from gpuguide.dataframes.cost.files import (
    FileAmounts,
    FilePrices,
    QueryTime,
    fit_files,
    fit_prices,
)
from gpuguide.dataframes.cost.fitting import (
    Line,
    MachineParameters,
    Measurement,
    fit_line,
    fit_parameters,
    read_measurements,
)
from gpuguide.dataframes.cost.sizes import (
    ROOM,
    WIDTH,
    Traffic,
    bytes_in,
    bytes_out,
    memory_needed,
    rows_of_result,
    traffic,
)

__all__ = [
    "LARGEST",
    "ROOM",
    "RULE_ROWS",
    "TOLERATED",
    "WIDTH",
    "Choice",
    "FileAmounts",
    "FilePrices",
    "Line",
    "MachineParameters",
    "Measurement",
    "Place",
    "Point",
    "QueryTime",
    "QueryVerdict",
    "Traffic",
    "bytes_in",
    "bytes_out",
    "crossover",
    "fit_files",
    "fit_line",
    "fit_parameters",
    "fit_prices",
    "host_transfer_time",
    "memory_needed",
    "read_measurements",
    "rows_of_result",
    "sooner",
    "traffic",
    "transfer_time",
    "unseen_queries",
    "unseen_verdicts",
    "verdicts",
    "verdicts_of_engine",
    "verdicts_of_rule",
    "where_to_run",
]
