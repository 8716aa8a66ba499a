"""Timing mistakes with dataframes: without waiting, before anything is computed, from a cold start."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from gpuguide.benchmarks.dataframes.frames import (
    IN_MEMORY,
    ON_GPU,
    rows_of,
    tables,
    with_cudf,
)
from gpuguide.benchmarks.dataframes.speed import MAKE, engine_work
from gpuguide.dataframes import cost, engines, operations
from gpuguide.dataframes.engines.polars_like import LazyPolars
from gpuguide.dataframes.libraries import library
from gpuguide.hardware.device import Device
from gpuguide.measure import records
from gpuguide.measure.benchmark import Benchmark, Contender, Keys, Work
from gpuguide.measure.records import Metric

MISTAKEN_ROWS = 10**7
COLD = "groupby"
"""The operation that is measured from a cold start"""
COLD_PARTS = ("import", "load", "first_call", "second_call")
"""Steps of a new process that are timed, in this order"""


class Plans(LazyPolars):
    """Polars' plans, of which none is ever run."""

    def collect(self, result: Any) -> Any:
        """Return the plan as it is."""
        return result


def right(device: Device, keys: Keys) -> Work:
    """Warm up, and wait for the GPU before the clock is stopped."""
    return engine_work("cudf", device, {**keys, "transfer": "none"})


def no_synchronize(device: Device, keys: Keys) -> Work:
    """All as it should be, but the clock is stopped when the call returns."""
    return stop_clock_early(right(device, keys), MAKE["cudf"]().wait)


def stop_clock_early(work: Work, wait: Callable[[], None]) -> Work:
    """Return work whose clock is stopped before it is waited for."""
    (call,) = work.calls

    def sample() -> float:
        wait()
        begun = time.perf_counter_ns()
        call()
        seconds = (time.perf_counter_ns() - begun) * 1e-9
        wait()
        return seconds

    return Work(work.calls, work.check, sample=sample)


def not_collected(device: Device, keys: Keys) -> Work:
    """Time a plan of Polars, which nobody runs."""
    operation, engine = str(keys["op"]), Plans()
    call = engines.call_with_transfer(engine, operation, *tables(operation, rows_of(keys)), "none")

    def check() -> None:
        assert hasattr(call(), "collect"), "something was computed where a plan was expected"

    return Work([call], check, timing="wall")


def cold_start(device: Device, keys: Keys) -> Work:
    """Time the first result of a new process: the library is imported, the frame copied, the operation done."""
    taken: dict[str, list[float]] = {name: [] for name in COLD_PARTS}

    def sample() -> float:
        parts = time_new_process("cudf", str(keys["op"]), rows_of(keys))
        for name in COLD_PARTS:
            taken[name].append(parts[name])
        return parts["import"] + parts["load"] + parts["first_call"]

    def further() -> Mapping[str, Metric]:
        return {name: records.metric("s", seconds) for name, seconds in taken.items()}

    return Work([sample], sample=sample, further=further)


def time_new_process(engine: str, operation: str, rows: int) -> dict[str, float]:
    """Return what a new process takes for each step to its first results."""
    program = f"from {__name__} import report_steps; report_steps({engine!r}, {operation!r}, {rows})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError((done.stderr.strip() or "the new process ended without a message").splitlines()[-1])
    parts: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return parts


def report_steps(engine: str, operation: str, rows: int) -> None:
    """Print the seconds of each step to the first results of this process. Making the table is none of them."""
    table, lookup = tables(operation, rows)
    marks = [time.perf_counter()]
    library(engine)
    chosen = engines.engine(engine)
    marks.append(time.perf_counter())
    frames = [None if each is None else chosen.load(each) for each in (table, lookup)]
    chosen.wait()
    marks.append(time.perf_counter())
    for _ in range(2):
        engines.call(chosen, operation, *frames)()
        chosen.wait()
        marks.append(time.perf_counter())
    print(json.dumps(dict(zip(COLD_PARTS, (end - begin for begin, end in itertools.pairwise(marks)), strict=True))))


def only_once(device: Device, keys: Keys) -> str | None:
    """Return the reason to skip all operations but one, because starting a process takes seconds."""
    return None if keys["op"] == COLD else f"a cold start is measured with {COLD} only"


DATAFRAME_MISTAKES = Benchmark(
    name="dataframe-mistakes",
    title="Operations on dataframes, timed wrongly",
    question="What does an operation on a frame seem to take when it is timed wrongly?",
    contenders={
        "right": with_cudf(right),
        "no-synchronize": with_cudf(no_synchronize),
        "not-collected": Contender(not_collected, ON_GPU, libraries=("polars", "pyarrow")),
        "cold-start": with_cudf(cold_start, only_once),
    },
    cases=lambda device: (
        [{"op": name, "rows": MISTAKEN_ROWS} for name in operations.OPERATIONS] if device.is_gpu else []
    ),
    memory=lambda keys: IN_MEMORY * cost.bytes_in(str(keys["op"]), rows_of(keys)),
    budget=0.1,
)
