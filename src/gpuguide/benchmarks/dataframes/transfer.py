"""The copy alone: a frame from the host to the GPU, by cuDF from pandas and from Arrow, and by us."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from gpuguide.benchmarks.dataframes.frames import IN_MEMORY, ROWS, rows_of, with_cudf
from gpuguide.dataframes import cost, data, transfer
from gpuguide.dataframes.engines import cudf_frames
from gpuguide.dataframes.engines.pandas_like import PandasLike
from gpuguide.dataframes.libraries import library
from gpuguide.hardware.device import Device
from gpuguide.measure.benchmark import Benchmark, Contender, Keys, Work
from gpuguide.measure.records import Rate

TRANSFERRED = ("key", "id", "value")


def from_pandas(table: Any) -> Callable[[], Any]:
    """Return cuDF's copy of pandas' frame, which is made beforehand."""
    frame = PandasLike().load(table)
    return lambda: library("cudf").from_pandas(frame)


def from_arrow(table: Any) -> Callable[[], Any]:
    """Return cuDF's copy of an Arrow table."""
    return lambda: library("cudf").DataFrame.from_arrow(table)


def stage_copy(table: Any) -> Callable[[], Any]:
    """Return our copy of an Arrow table."""
    return lambda: transfer.load(table)


def transfer_work(make: Callable[[Any], Callable[[], Any]], device: Device, keys: Keys) -> Work:
    """Copy a frame to the GPU."""
    size = rows_of(keys) * sum(cost.WIDTH[name] for name in TRANSFERRED)
    moved = {"bandwidth": Rate("B/s", size)}
    cudf_frames.use_pool()
    table = data.frame(rows_of(keys), columns=TRANSFERRED)

    def check() -> None:
        compare(make(table)(), table)
        small = data.normalize_table(data.frame(10**4, nulls=0.1))  # with text and missing values
        compare(make(small)(), small)

    return Work([make(table)], check, moved, timing="wall")


def compare(frame: Any, table: Any) -> None:
    """Check that cuDF's frame holds what a table does."""
    found = frame.to_arrow(preserve_index=False)
    for name in table.column_names:
        right = table[name].combine_chunks()
        assert found[name].cast(right.type).combine_chunks().equals(right), f"column {name!r} differs"


def copier(make: Callable[[Any], Callable[[], Any]], *called: str) -> Contender:
    """Return a copy as a contender, with the libraries that it calls besides cuDF."""
    contender = with_cudf(lambda device, keys: transfer_work(make, device, keys))
    return replace(contender, libraries=(*contender.libraries, *called))


FRAME_TRANSFER = Benchmark(
    name="frame-transfer",
    title="A frame from the host to the GPU",
    question="How fast does a frame in pageable memory get to the GPU?",
    contenders={
        "from-pandas": copier(from_pandas, "pandas"),
        "from-arrow": copier(from_arrow),
        "gpuguide-staged": copier(stage_copy),
    },
    cases=lambda device: [{"rows": rows} for rows in ROWS] if device.is_gpu else [],
    memory=lambda keys: IN_MEMORY * rows_of(keys) * sum(cost.WIDTH[name] for name in TRANSFERRED),
    budget=0.2,
)
