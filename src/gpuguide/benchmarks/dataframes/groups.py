"""Group-by with few and with many groups, by cuDF and by our kernel."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from gpuguide.benchmarks.dataframes.frames import IN_MEMORY, count_rows, with_cudf
from gpuguide.dataframes import cost, data, engines, operations
from gpuguide.dataframes.engines import cudf_frames
from gpuguide.dataframes.engines.dense_keys import DenseKeys
from gpuguide.hardware.device import Device
from gpuguide.measure.benchmark import Benchmark, Contender, Keys, Work
from gpuguide.measure.records import Rate

GROUPS = (1, 10, 100, 200, 1000, 10**4, 10**5, 10**6)
"""cuDF adds in shared memory where a block meets fewer than 128; our copies of a sum run out above 19 000"""
GROUPED_ROWS = 10**8
GROUP_MAKERS: dict[str, Callable[[int], engines.DataframeEngine]] = {
    "cudf": lambda groups: engines.engine("cudf"),
    "gpuguide": DenseKeys,
}


@functools.lru_cache(maxsize=1)
def make_groups(groups: int, rows: int) -> Any:
    """Return keys that count from 0, and values. The last ones are kept for the next contender."""
    return data.frame(rows, columns=("key", "value"), keys=groups)


def groups_work(name: str, device: Device, keys: Keys, rows: int = GROUPED_ROWS) -> Work:
    """Group by as many keys as the case has."""
    groups = int(keys["groups"])
    moved = {
        "throughput": Rate("row/s", rows),
        "bandwidth": Rate("B/s", rows * (cost.WIDTH["key"] + cost.WIDTH["value"])),
    }
    cudf_frames.use_pool()
    engine, table = GROUP_MAKERS[name](groups), make_groups(groups, rows)
    frame = engine.load(table)

    def check() -> None:
        small = data.normalize_table(data.frame(10**4, columns=("key", "value"), keys=groups, nulls=0.05))
        found = engine.unload(engine.group_by(engine.load(small), "key"))
        different = operations.difference("groupby", found, operations.reference("groupby", small))
        assert different is None, f"{groups} groups on {name}: {different}"
        count, right = count_rows(engine.group_by(frame, "key")), operations.result_rows("groupby", table)
        assert count == right, f"{count} groups, {right} are right"

    return Work([lambda: engine.group_by(frame, "key")], check, moved, timing="wall")


def grouper(name: str) -> Contender:
    """Return the contender of one group-by."""
    return with_cudf(lambda device, keys: groups_work(name, device, keys))


DATAFRAME_GROUPS = Benchmark(
    name="dataframe-groups",
    title="Group-bys with few groups and many",
    question="How does the time of a group-by depend on the number of groups?",
    contenders={name: grouper(name) for name in GROUP_MAKERS},
    cases=lambda device: [{"groups": groups} for groups in GROUPS] if device.is_gpu else [],
    memory=lambda keys: IN_MEMORY * GROUPED_ROWS * (cost.WIDTH["key"] + cost.WIDTH["value"]),
    budget=0.1,
)
