"""What cuDF's libraries read from the environment when they are first used, and queries set.

Source: RAPIDS, "cudf-polars: configuration options", and libcudf's "Input / output settings" (``KVIKIO_NTHREADS``).
"""

from __future__ import annotations

import os

MOST_READ_THREADS = 16


def set_gpu_defaults() -> None:
    """Set these variables, unless they are set: call it before a process first reads a file on a GPU."""
    # Managed memory beyond the card's is slow, and may hang the GPU. cudf-polars takes it unless this is 0.
    os.environ.setdefault("POLARS_GPU_ENABLE_CUDA_MANAGED_MEMORY", "0")
    # libcudf copies files to the GPU with 4 threads by default.
    os.environ.setdefault("KVIKIO_NTHREADS", str(read_threads()))


def read_threads() -> int:
    """Return how many threads should copy files to a GPU: one for each core that this process may use, up to 16."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # neither on macOS nor on Windows
        cores = os.cpu_count() or 1
    return min(MOST_READ_THREADS, cores)
