"""cuDF: pandas' calls on frames in the memory of a GPU."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from gpuguide.dataframes import cost
from gpuguide.dataframes.engines.pandas_like import PandasLike
from gpuguide.dataframes.libraries import library
from gpuguide.errors import GpuguideError

LEAST_CAPABILITY = (7, 0)
"""Of GPUs that cuDF runs on. Source: RAPIDS, "Platform support"."""


class CuDF(PandasLike):
    """The operations on cuDF, with its own frames: no accelerator, no fallback."""

    name = "cudf"
    place = "gpu"

    def __init__(self, module: ModuleType | None = None, free_memory: Callable[[], int] | None = None) -> None:
        super().__init__(module or library("cudf"))
        self.free_memory = free_memory or _free_memory

    def load(self, table: Any) -> Any:
        """Return cuDF's frame, copied by cuDF from the table's buffers.

        Raises
        ------
        GpuguideError
            If the frame would not fit.
        """
        check_fits(table.nbytes, table.num_rows, self.free_memory())
        return self.module.DataFrame.from_arrow(table)

    def unload(self, result: Any) -> Any:
        """Return a frame as an Arrow table in the host's memory."""
        return result.to_arrow(preserve_index=False)

    def wait(self) -> None:
        """Return when the GPU has nothing to do."""
        torch.cuda.synchronize()


def _free_memory() -> int:
    free, _ = torch.cuda.mem_get_info()
    return free


def check_fits(size: int, rows: int, free: int, operation: str | None = None) -> None:
    """Refuse a frame that does not fit a GPU, alone or together with what an operation needs beside it.

    Parameters
    ----------
    size : int
        Bytes of the frame.
    rows : int
        Its rows.
    free : int
        Bytes that are free on the GPU.
    operation : str, optional
        Of :data:`gpuguide.dataframes.operations.OPERATIONS`; its need is that of
        :func:`gpuguide.dataframes.cost.memory_needed`.

    Raises
    ------
    GpuguideError
        The message says how many rows would fit.
    """
    needed = float(size) if operation is None else cost.memory_needed(operation, size, rows)
    if needed <= free:
        return
    more = "" if operation is None else f", and the operation {operation!r} with it about {needed / 2**30:.2f} GiB"
    raise GpuguideError(
        f"A frame of {rows:,} rows takes {size / 2**30:.2f} GiB{more}; {free / 2**30:.2f} GiB are free on the GPU. "
        f"Up to {int(free * rows / needed):,} such rows fit: work on parts of that size, or on the host."
    )


@functools.cache
def use_pool() -> None:
    """Let cuDF take memory from the driver's pool from now on, which spares a call to the driver for each allocation.

    Source: RMM's documentation, ``CudaAsyncMemoryResource``.
    """
    resources = library("rmm").mr
    resources.set_current_device_resource(resources.CudaAsyncMemoryResource())


def why_not_here() -> str | None:
    """Return why cuDF cannot run here, or ``None`` if it can."""
    if not torch.cuda.is_available():
        return "cuDF needs an NVIDIA GPU, and PyTorch sees none"
    capability = torch.cuda.get_device_capability()
    if capability < LEAST_CAPABILITY:
        needed, found = (".".join(map(str, version)) for version in (LEAST_CAPABILITY, capability))
        return f"cuDF needs a GPU of compute capability {needed} or newer, and this one has {found}"
    try:
        library("cudf")
    except GpuguideError as error:
        return str(error).rstrip(".")
    return None
