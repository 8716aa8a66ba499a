"""A query as calls of Dask-cuDF: cuDF's frames in parts, which a process for each GPU computes.

Source: RAPIDS, "Dask cuDF Best Practices" and Dask-CUDA's ``LocalCUDACluster``.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any

from gpuguide.dataframes.libraries import library
from gpuguide.dataframes.query.choice import why_not_here as why_no_cudf
from gpuguide.dataframes.query.cudf_calls import CuDFCalls
from gpuguide.dataframes.query.gpu_defaults import set_gpu_defaults
from gpuguide.dataframes.query.source import Source


class DaskCalls(CuDFCalls):
    """The steps of a query on frames in parts, of which nothing is computed before the result is fetched."""

    def load(self, source: Source, columns: Sequence[str]) -> Any:
        """Return columns of Parquet files, with NaN as a missing value."""
        frame = library("dask_cudf").read_parquet(list(source.paths), columns=list(columns))
        return frame.map_partitions(lambda part: part.nans_to_nulls())

    def unload(self, frame: Any) -> Any:
        """Compute a frame on all GPUs, and return it as an Arrow table."""
        return super().unload(frame.compute())


def start_cluster(count: int, pool: float) -> Any:
    """Return the client of a process for each of the first GPUs, which exchange rows over NVLink where there is one.

    Everything of Dask that is computed while it lives is computed there.

    Parameters
    ----------
    count : int
        How many GPUs.
    pool : float
        The share of each GPU's memory that its process takes at first.
    """
    set_gpu_defaults()
    cluster = library("dask_cuda").LocalCUDACluster(
        CUDA_VISIBLE_DEVICES=list(range(count)),
        protocol="ucx",
        rmm_pool_size=pool,
        enable_cudf_spill=True,
        dashboard_address=None,
    )
    return library("distributed").Client(cluster)


def end_cluster(client: Any) -> None:
    """End the processes of a client."""
    cluster = client.cluster
    client.close()
    cluster.close()


def why_not_here() -> str | None:
    """Return why Dask-cuDF cannot run here, or ``None`` if it can."""
    if why := why_no_cudf("cudf"):
        return why
    needed = {"dask_cudf": "dask-cudf-cu13", "dask_cuda": "dask-cuda", "distributed_ucxx": "distributed-ucxx-cu13"}
    missing = [package for module, package in needed.items() if importlib.util.find_spec(module) is None]
    return f"{' and '.join(missing)} not installed; pip install {' '.join(missing)}" if missing else None
