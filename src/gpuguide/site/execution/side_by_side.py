"""Runs pages, as many at a time as there are cores and as memory allows, those that took longest first.

This is the program of a process beside Sphinx, so that neither waits for the other. It reads what to run from standard
input, puts what pages printed into the execution cache, and says on standard output what became of each, a line of JSON
each time. When its standard input ends, because the build has, it ends its kernels and itself.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gpuguide.site.execution import cell_faults, kernels, outputs_cache
from gpuguide.site.execution.cell_faults import CellError

ROOM = 1_500_000_000
"""Memory that must be available, in bytes, to run one page more: what the largest of today's pages takes, and some"""
_LOOK_AGAIN = 1.0
"""Seconds until memory is looked at again"""


@dataclass(frozen=True)
class Job:
    """A page to run."""

    name: str
    path: str
    notebook: Mapping[str, Any]
    timeout: float
    settings: Mapping[str, str] = field(default_factory=dict)
    """What is added to the environment of its kernel"""
    libraries: Sequence[str] = ()
    """What takes long to import, and it uses"""

    @property
    def code_length(self) -> int:
        """The characters of its code, which tell best how long a page takes that never ran."""
        return sum(len(cell["source"]) for cell in self.notebook["cells"] if cell["cell_type"] == "code")

    def as_json(self) -> dict[str, Any]:
        """Return the job as plain values."""
        return asdict(self)


def main() -> None:
    """Run the pages that standard input names."""
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as events:
        os.dup2(2, 1)  # what libraries print is no event
        request = json.loads(sys.stdin.readline())
        jobs = [Job(**each) for each in request["jobs"]]
        kernels.warm_up(request["libraries"])

        def say(**event: Any) -> None:
            events.write(json.dumps(event) + "\n")
            events.flush()

        asyncio.run(_until_the_build_ends(run_all(jobs, request["cache"], request["at_once"], say)))


async def _until_the_build_ends(work: Any) -> None:
    loop, task = asyncio.get_running_loop(), asyncio.ensure_future(work)

    def watch() -> None:
        sys.stdin.read()
        loop.call_soon_threadsafe(task.cancel)

    threading.Thread(target=watch, daemon=True).start()
    await asyncio.wait([task])
    if not task.cancelled():
        task.result()


async def run_all(jobs: Sequence[Job], cache_folder: str, at_once: int, say: Callable[..., None]) -> None:
    """Run pages; what is wrong with one does not keep the others from running."""
    from jupyter_cache import get_cache

    cache = get_cache(cache_folder)
    running: set[asyncio.Task[None]] = set()
    told = False
    try:
        for job in longest_first(jobs, outputs_cache.last_seconds(cache)):
            while running and (len(running) >= at_once or available_memory() < ROOM):
                if len(running) < at_once and not told:
                    told = True
                    say(note=f"{available_memory() / 1e9:.1f} GB of memory are free: no further page is begun for now.")
                _, running = await asyncio.wait(running, timeout=_LOOK_AGAIN, return_when=asyncio.FIRST_COMPLETED)
            running.add(asyncio.create_task(run_and_keep(job, cache, say)))
        if running:
            await asyncio.wait(running)
    finally:
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)


def longest_first(jobs: Sequence[Job], seconds: Mapping[str, float]) -> list[Job]:
    """Return the jobs in the order in which to begin them: first those that never ran, the one with most code first."""
    return sorted(jobs, key=lambda job: (seconds.get(job.path, math.inf), job.code_length), reverse=True)


def available_memory() -> int:
    """Return the memory that a new process can have, in bytes."""
    import psutil

    return int(psutil.virtual_memory().available)


async def run_and_keep(job: Job, cache: Any, say: Callable[..., None]) -> None:
    """Run a page and keep what it printed, or say what is wrong with it."""
    import nbformat

    notebook = nbformat.from_dict(dict(job.notebook))
    seconds = 0.0
    try:
        fault, seconds = await run(notebook, job)
        if fault is None:
            outputs_cache.keep(cache, notebook, job.path, seconds)
    except Exception as error:
        message = next(iter(str(error).splitlines()), "")
        details = "".join(traceback.format_exception(error))
        fault = CellError(0, "", 0, f"{type(error).__name__}: {message}", details)
    if fault is None:
        say(page=job.name, seconds=seconds)
    else:
        say(page=job.name, fault=fault.as_json())


async def run(notebook: Any, job: Job) -> tuple[CellError | None, float]:
    """Run the cells of a page in a kernel and a folder of its own; return what is wrong, if anything is, and the time.

    The time counts from when the kernel is ready, whoever imported the libraries for it.
    """
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    at, began = 0, time.perf_counter()

    def note_start(notebook: Any) -> None:
        nonlocal began
        began = time.perf_counter()

    def note_cell(cell: Any, cell_index: int) -> None:
        nonlocal at
        at = cell_index

    def cell() -> tuple[int, str]:
        return sum(each.cell_type == "code" for each in notebook.cells[: at + 1]), notebook.cells[at].source

    fault = None
    with tempfile.TemporaryDirectory(prefix="page-", ignore_cleanup_errors=True) as place:
        folder = Path(place) / "page"
        folder.mkdir()
        kernel = kernels.PageKernel(folder, job.settings)
        client = NotebookClient(
            notebook,
            km=kernel.manager,
            timeout=job.timeout,
            record_timing=False,  # times would be part of what the cache looks the page up by
            on_notebook_start=note_start,
            on_cell_execute=note_cell,
            shutdown_kernel="immediate",
        )
        client.owns_km = True  # so that it ends the kernel
        try:
            await client.async_execute()
        except CellExecutionError as error:
            fault = cell_faults.describe_exception(*cell(), error)
        except CellTimeoutError:
            fault = cell_faults.describe_timeout(*cell(), job.timeout)
        except DeadKernelError:
            fault = cell_faults.describe_death(*cell(), kernel.exit_status())
        finally:
            kernel.end()
    return fault, time.perf_counter() - began
