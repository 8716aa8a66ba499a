"""Kernels that begin with the heavy imports done: each is forked from a process that imported torch and matplotlib.

The process that forks (Python's fork server) imports and does nothing else, so that no thread runs in it. Where forking
a process that has loaded such libraries is not safe, as on macOS, every kernel is a new process and imports for
itself. A kernel leads a session of its own; what it started ends with it, and it ends when the build does.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import re
import signal
import sys
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from jupyter_client.manager import AsyncKernelManager
from jupyter_client.provisioning.local_provisioner import LocalProvisioner

from gpuguide.measure import digest, folders

if TYPE_CHECKING:
    import subprocess
    from multiprocessing.process import BaseProcess

    from jupyter_client.connect import KernelConnectionInfo

SETTINGS = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MPLBACKEND": "module://matplotlib_inline.backend_inline",
}
"""What libraries read when they are imported. With one thread a sum does not depend on the machine's cores, nor on how
many pages run at a time"""
ALWAYS = ("ipykernel.kernelapp", "ipykernel.ipkernel", "matplotlib_inline")
"""What every kernel imports"""
HEAVY = ("torch", "matplotlib", "myst_nb", "transformers", "peft")
"""What takes long to import, and is imported once for all pages if any of them uses it"""
IMPORTED_FIRST = "GPUGUIDE_IMPORTED_FIRST"
"""Tells the process that forks which of these that are"""

FORKING = sys.platform == "linux"
_CONTEXT = multiprocessing.get_context("forkserver") if FORKING else multiprocessing.get_context("spawn")


def warm_up(libraries: Iterable[str]) -> None:
    """Start the process that imports, while there is something else to do."""
    if FORKING:
        from multiprocessing import forkserver

        os.environ.update({**SETTINGS, IMPORTED_FIRST: " ".join(libraries)})
        _CONTEXT.set_forkserver_preload(["gpuguide.site.execution.heavy_imports"])
        forkserver.ensure_running()


def import_heavy() -> None:
    """Import what the pages use. What is not installed, the page that wants it will say."""
    for name in (*ALWAYS, *os.environ.pop(IMPORTED_FIRST, "").split()):
        with contextlib.suppress(ImportError):
            importlib.import_module("matplotlib.pyplot" if name == "matplotlib" else name)


def libraries_of(code: str) -> set[str]:
    """Return which of the heavy libraries a page's code imports, or a module of gpuguide that it imports does."""
    modules = digest.transitive(digest.imports_of(code))
    texts = [code, *(digest.module_path(name).read_text(encoding="utf-8") for name in modules)]
    return {name for name in HEAVY if any(re.search(rf"(?m)^\s*(?:import|from) {name}\b", text) for text in texts)}


class PageKernel:
    """A kernel for one page: it works in ``folder``, with ``settings`` added to its environment.

    Its sockets are files beside the folder, so that kernels of two builds cannot take each other's ports.
    """

    def __init__(self, folder: Path, settings: Mapping[str, str]) -> None:
        self.manager = AsyncKernelManager(transport="ipc", connection_file=str(folder.parent / "kernel.json"))
        arguments = ["-f", self.manager.connection_file, "--HistoryManager.hist_file=:memory:"]
        self._process = _CONTEXT.Process(target=be_kernel, args=(arguments, str(folder), {**own_records(), **settings}))
        self.manager.provisioner = ForkedKernel(
            self._process, parent=self.manager, kernel_spec=self.manager.kernel_spec
        )

    def exit_status(self) -> int | None:
        """Return the exit status of a kernel that died by itself; a negative one is a signal's number."""
        self._process.join(timeout=5)
        return self._process.exitcode

    def end(self) -> None:
        """End the kernel, and whatever it has left behind."""
        if self._process.pid is not None:
            end_session(self._process.pid)
            self._process.join()


def own_records() -> dict[str, str]:
    """Return the setting that names the reader's own records, by their whole name: a kernel is in another folder."""
    folders.overlay_to_write()  # which makes the name absolute
    named = os.environ.get(folders.OVERLAY_VARIABLE)
    return {} if named is None else {folders.OVERLAY_VARIABLE: named}


class ForkedKernel(LocalProvisioner):
    """Starts a kernel in a process of multiprocessing, and ends it with everything that it started."""

    def __init__(self, process: BaseProcess, **options: Any) -> None:
        super().__init__(**options)
        self._process = process

    async def launch_kernel(self, cmd: list[str], **options: Any) -> KernelConnectionInfo:
        """Start the kernel; the command of the installed kernel is not used, which may be another Python's."""
        self._process.start()
        self.process = cast("subprocess.Popen[bytes]", _AsPopen(self._process))
        self.pid = self.pgid = self._process.pid
        return self.connection_info

    async def kill(self, restart: bool = False) -> None:
        """End the kernel and all that it started."""
        if self.process is not None:
            end_session(self.process.pid)

    async def terminate(self, restart: bool = False) -> None:
        """End the kernel and all that it started."""
        await self.kill()


class _AsPopen:
    """A process of multiprocessing, with the names that jupyter_client knows from subprocess."""

    stdin = stdout = stderr = None

    def __init__(self, process: BaseProcess) -> None:
        self._process = process
        self.pid = process.pid or 0

    def poll(self) -> int | None:
        """Return the exit code, or ``None`` while the process runs."""
        return self._process.exitcode

    def wait(self) -> int | None:
        """Wait for the end, and return the exit code."""
        self._process.join()
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        """Send a signal."""
        os.kill(self.pid, number)


def be_kernel(arguments: list[str], folder: str, settings: Mapping[str, str]) -> None:
    """Be a kernel. Runs in the forked process."""
    os.setsid()
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    os.environ.update({**SETTINGS, **settings})
    os.chdir(folder)
    threading.Thread(target=_end_with_the_build, daemon=True).start()
    from ipykernel.kernelapp import IPKernelApp

    IPKernelApp.launch_instance(argv=arguments)


def _end_with_the_build() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        end_session(os.getpid())


def end_session(leader: int) -> None:
    """Kill a kernel and every process that it started, those included that left its group."""
    import psutil

    members = [process.pid for process in psutil.process_iter() if _session(process.pid) == leader]
    with contextlib.suppress(psutil.NoSuchProcess):
        members += [process.pid for process in psutil.Process(leader).children(recursive=True)]
    for pid in [*(set(members) - {leader}), leader]:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except OSError:
        return None
