"""Polars' streaming executor over several GPUs: a process for each of them, which all run the same plan.

Each process reads a part of the files. Rows are exchanged over UCX, which goes over NVLink where there is one. The
processes find each other through ``torch.distributed``, which carries no more than an address. What a process gets is
its part of the result, or all of it where the engine has given every process the whole.

Source: cudf-polars 26.10, ``engine/spmd.py``, and ``engine/ray.py`` for how processes that know no launcher meet.
"""

from __future__ import annotations

import functools
import importlib.util
import os
from typing import Any

import torch.distributed as dist

from gpuguide.dataframes.libraries import library
from gpuguide.dataframes.query.gpu_defaults import set_gpu_defaults
from gpuguide.dataframes.query.limited_polars import why_no_streaming

POOL = 8 * 2**30
"""Bytes that each process takes from its GPU at first"""


def take_gpu(rank: int) -> None:
    """Let this process see one GPU of those that it was given. It must be called before CUDA is first used.

    The executor's threads use the first GPU that they see.
    """
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    os.environ["CUDA_VISIBLE_DEVICES"] = given.split(",")[rank] if given else str(rank)


def start_engine(rank: int, world_size: int, **others: Any) -> Any:
    """Return this process's engine, which ``collect`` takes. Every process must call it, and ask for equal queries.

    Parameters
    ----------
    rank, world_size : int
        Of this process, and how many there are.
    others : object
        Further options of ``StreamingOptions``.
    """
    take_gpu(rank)
    set_gpu_defaults()
    options = library("cudf_polars.engine.options").StreamingOptions(
        raise_on_fail=True, memory_resource_config=shared_memory(), **others
    )
    communication = library("cudf_polars.engine.core").resolve_rapidsmpf_options(options.to_rapidsmpf_options())
    return library("cudf_polars.engine.spmd").SPMDEngine(
        comm=meet(rank, world_size, communication) if world_size > 1 else None,
        rapidsmpf_options=communication,
        executor_options=options.to_executor_options(),
        engine_options=options.to_engine_options(),
    )


def shared_memory() -> Any:
    """Return how RMM gets its memory: in a few large pieces, which another process's GPU may read.

    The driver's pool, from which the executor takes its memory otherwise, gives memory that it may not.
    """
    return library("cudf_polars.utils.config").MemoryResourceConfig(
        qualname="rmm.mr.PoolMemoryResource",
        options={"upstream_mr": {"qualname": "rmm.mr.CudaMemoryResource"}, "initial_pool_size": POOL},
    )


def meet(rank: int, world_size: int, options: Any) -> Any:
    """Return UCX's communicator of all processes: the first one's address is sent to the others."""
    ucx = library("rapidsmpf.communicator.ucxx")
    progress = library("rapidsmpf.progress_thread").ProgressThread(
        library("rapidsmpf.statistics").Statistics.from_options(options)
    )
    create = functools.partial(ucx.new_communicator, world_size, None, options=options, progress_thread=progress)
    address: list[bytes | None] = [None]
    if rank == 0:
        communicator = create(root_ucxx_address=None)
        address = [ucx.get_root_ucxx_address(communicator)]
    dist.broadcast_object_list(address)
    if rank > 0:
        root = library("ucxx._lib.libucxx").UCXAddress.create_from_buffer(address[0])
        communicator = create(root_ucxx_address=root)
    ucx.barrier(communicator)
    return communicator


def why_not_here() -> str | None:
    """Return why the executor cannot run over several GPUs here, or ``None`` if it can."""
    if why := why_no_streaming():
        return why
    return None if importlib.util.find_spec("ucxx") else "ucxx is not installed; pip install ucxx-cu13"
