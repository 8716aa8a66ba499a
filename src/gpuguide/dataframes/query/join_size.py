"""How many rows a join will have, and which key is to blame, before the memory runs out.

A key that is in ``a`` rows of the left table and in ``b`` rows of the right one makes ``a · b`` rows. One frequent key
in both is enough to exceed any memory, and on several GPUs all of its rows meet on one of them.
"""

from __future__ import annotations

from typing import Any

from gpuguide.dataframes.libraries import library
from gpuguide.dataframes.query import polars_plan
from gpuguide.dataframes.query.steps import Chain, Join
from gpuguide.errors import GpuguideError

VALUE = 8.0
"""Bytes of a value whose width is not known"""


def check_joins(query: Chain, memory: float) -> None:
    """Refuse a join whose result would not fit the memory. Only key columns are read for it.

    Parameters
    ----------
    query : Query
        Joins are looked for among its steps.
    memory : float
        Bytes that are free where it would run.

    Raises
    ------
    GpuguideError
        The message says how many rows there would be, and which key makes how large a share of them.
    """
    for place, (_, step) in enumerate(query.steps):
        if not isinstance(step, Join):
            continue
        row_bytes = sum(query.source.widths.get(name, VALUE) for name in query.columns_read)
        row_bytes += VALUE * (len(step.other.schema) - len(step.on))
        if query.source.rows * step.other.source.rows * row_bytes <= memory:
            continue  # even if every row had every other as a partner
        rows, largest = count_rows(query.first_steps(place), step)
        if rows * row_bytes <= memory:
            continue
        key = ", ".join(f"{name} = {largest[name]!r}" for name in step.on)
        raise GpuguideError(
            f"The join would have {rows:,} rows, about {rows * row_bytes / 2**30:.1f} GiB, and {memory / 2**30:.1f} "
            f"GiB are free. The key {key} alone makes {largest['rows'] / rows:.0%} of them: it is in "
            f"{largest['left']:,} rows of the left table and {largest['right']:,} of the right one. Filter it out, or "
            "group one of the tables by the key first."
        )


def count_rows(left: Chain, step: Join) -> tuple[int, dict[str, Any]]:
    """Return how many rows a join has, and the key that makes most of them, with its rows on both sides."""
    polars = library("polars")
    keys = list(step.on)

    def count(frame: Any, side: str) -> Any:
        return frame.group_by(keys).agg(polars.len().cast(polars.Int64).alias(side))

    counted = polars_plan.join_plans(
        count(polars_plan.plan(left), "left"), count(polars_plan.plan(step.other), "right"), step, left.schema
    )
    made = counted.with_columns(rows=polars.col("left") * polars.col("right"))
    found = made.select(polars.col("rows").sum().alias("total"), polars.all().sort_by("rows").last())
    row = found.collect(engine="streaming").row(0, named=True)
    return row.pop("total"), row
