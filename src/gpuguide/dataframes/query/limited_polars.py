"""Polars' two executors on a GPU, which may use only so much of its memory: to measure what happens beyond it.

The limit is RMM's adaptor, which fails an allocation that would exceed it. Managed memory is not used.

The streaming executor holds several pieces of a file at a time. Two are read, each of which takes about three times
the bytes of its columns, one waits and one is computed, so that about eight times the bytes of a piece are in use. What
an exchange keeps is moved to the host once four fifths of the memory are in use, and the rest is for the pieces.

How large the pieces are depends on the files. Files that are smaller than a piece are read whole, as many together as
make a piece. A larger file is split into pieces of equally many row groups, and the last piece has those that remain:
of 100 row groups in 81 pieces it has 20.

Source: cudf-polars 26.10, ``engine/spmd.py``, ``utils/config.py``, ``streaming/io.py`` (``scan_partition_plan`` and
``SplitScan``) and ``streaming/actor_graph/io.py``.
"""

from __future__ import annotations

import importlib.util
from typing import Any, Protocol

from gpuguide.dataframes.libraries import library
from gpuguide.dataframes.query.choice import why_not_here

SPILL_SHARE = 0.8
PARTITION_SHARE = 0.025
BROADCAST_SHARE = 0.15
"""Shares of a GPU's memory that the streaming executor takes by default: above the first it moves pieces to the host,
the second is the size of a piece of a file, and a table up to the third is copied whole for a join"""
ALIGNMENT = 256
"""Bytes to which RMM rounds allocations"""


class LimitedEngine(Protocol):
    """An engine of Polars with a limit of memory."""

    engine: Any
    """What ``collect`` and ``sink_parquet`` take as their engine"""

    def peak(self) -> int:
        """Return the most bytes that were allocated at one time since it began."""

    def close(self) -> None:
        """Give back what it holds."""


class HostPolars:
    """The streaming engine on the host, which has all of its memory."""

    engine = "streaming"

    def __init__(self, limit: int | None) -> None:
        assert limit is None, "memory is limited only on a GPU"

    def peak(self) -> int:
        """Return nothing: it allocates no memory on a GPU."""
        return 0

    def close(self) -> None:
        """Hold nothing."""


class InMemoryPolars:
    """The executor that holds whole columns on the GPU."""

    def __init__(self, limit: int | None) -> None:
        resources = library("rmm").mr
        resource = resources.CudaAsyncMemoryResource()
        if limit is not None:
            resource = resources.LimitingResourceAdaptor(resource, limit)
        self.statistics = resources.StatisticsResourceAdaptor(resource)
        self.engine = library("polars").GPUEngine(
            executor="in-memory", memory_resource=self.statistics, raise_on_fail=True
        )

    def peak(self) -> int:
        """Return the most bytes that were allocated at one time since it began."""
        return int(self.statistics.allocation_counts.peak_bytes)

    def close(self) -> None:
        """Hold nothing but the resource, which is freed with this object."""


class StreamingPolars:
    """The executor that reads a file in pieces and moves pieces to the host. It ends on the thread that began it.

    Parameters
    ----------
    limit : int or None
        Bytes of the GPU's memory that it may use.
    others : object
        Options of ``StreamingOptions``, which replace those that follow from the limit.
    """

    def __init__(self, limit: int | None, **others: Any) -> None:
        # The engine of engine="gpu" and an engine of one's own cannot both run in a process.
        library("cudf_polars.engine.default_singleton_engine").DefaultSingletonEngine.shutdown()
        limits: dict[str, Any] = {} if limit is None else options_within(limit)
        if limit is not None:
            config = library("cudf_polars.utils.config").MemoryResourceConfig
            limits["memory_resource_config"] = config(**resource_within(limit))
        options = library("cudf_polars.engine.options").StreamingOptions(raise_on_fail=True, **{**limits, **others})
        self.engine = library("cudf_polars.engine.spmd").SPMDEngine.from_options(options)

    def peak(self) -> int:
        """Return the most bytes that were allocated at one time since it began."""
        return int(self.engine.context.br().device_mr_adaptor().get_main_record().peak())

    def close(self) -> None:
        """End its threads, and give back its memory on the GPU and on the host."""
        self.engine.shutdown()


def options_within(limit: int) -> dict[str, Any]:
    """Return the streaming executor's options for a limit: what it would choose on a GPU with so much memory.

    >>> options_within(10**9)
    {'spill_device_limit': '800000000', 'target_partition_size': 25000000, 'broadcast_limit': 150000000}
    """
    return {
        "spill_device_limit": str(int(SPILL_SHARE * limit)),
        "target_partition_size": max(1, int(PARTITION_SHARE * limit)),
        "broadcast_limit": max(1, int(BROADCAST_SHARE * limit)),
    }


def resource_within(limit: int) -> dict[str, Any]:
    """Return what RMM's resource with a limit is made of, by names, as the streaming executor wants it."""
    pool = {"qualname": "rmm.mr.CudaAsyncMemoryResource", "options": {}}
    return {
        "qualname": "rmm.mr.LimitingResourceAdaptor",
        "options": {"upstream_mr": pool, "allocation_limit": limit},
    }


def limit_for(data: float) -> int:
    """Return the limit that data of some bytes is as large as.

    >>> limit_for(1000.0)
    768
    """
    return int(data) // ALIGNMENT * ALIGNMENT


def why_no_streaming() -> str | None:
    """Return why Polars' streaming executor cannot run on a GPU here, or ``None`` if it can."""
    if why := why_not_here("polars-gpu"):
        return why
    if importlib.util.find_spec("cudf_polars.engine") is None:
        return "this cudf-polars has no streaming engine with options; install version 26.10 or newer"
    return None
