"""A GPU's own counters for the kernels of a program, read by Nsight Compute.

The program says which kernels: those between ``torch.cuda.profiler.start()`` and ``torch.cuda.profiler.stop()``. The
caches and the clock are left as they are, so that the kernels meet what they would meet without the profiler.

Source: Nsight Compute's documentation of its command line, https://docs.nvidia.com/nsight-compute/NsightComputeCli/.
"""

from __future__ import annotations

import csv
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from gpuguide.errors import GpuguideError

READ, WRITTEN, DURATION = "dram__bytes_read.sum", "dram__bytes_write.sum", "gpu__time_duration.sum"
"""Bytes that came from the GPU's memory and that went there, and seconds"""
UNITS = {"byte": 1.0, "ns": 1e-9, "nsecond": 1e-9, "us": 1e-6, "usecond": 1e-6, "ms": 1e-3, "msecond": 1e-3}
USUAL_PLACE = Path("/usr/local/cuda/bin/ncu")

Kernel = dict[str, float]
"""Counters of one kernel, in bytes and seconds"""


def profiler() -> Path | None:
    """Return where Nsight Compute is, or nothing."""
    found = shutil.which("ncu")
    return Path(found) if found else USUAL_PLACE if USUAL_PLACE.is_file() else None


def count(program: Sequence[str], counters: Sequence[str] = (READ, WRITTEN, DURATION)) -> list[Kernel]:
    """Run a program and return what the counters say of each of its kernels, in their order.

    Raises
    ------
    GpuguideError
        If Nsight Compute is not installed, may not read the counters, or the program fails.
    """
    tool = profiler()
    if tool is None:
        raise GpuguideError("Nsight Compute (ncu) is not installed; it comes with the CUDA toolkit.")
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "counters.csv"
        options = ["--profile-from-start", "off", "--cache-control", "none", "--clock-control", "none"]
        options += ["--csv", "--page", "raw", "--print-units", "base", "--metrics", ",".join(counters)]
        done = subprocess.run(
            [str(tool), *options, "--log-file", str(log), *program], capture_output=True, text=True, check=False
        )
        told = log.read_text() if log.is_file() else ""
    if "ERR_NVGPUCTRPERM" in told + done.stderr:
        raise GpuguideError(
            "The driver lets only administrators read a GPU's counters (ERR_NVGPUCTRPERM); run as one, or let the "
            "driver be loaded with NVreg_RestrictProfilingToAdminUsers=0."
        )
    if done.returncode:
        last = [line for line in (done.stderr + told).splitlines() if line.strip()][-1:]
        raise GpuguideError(f"The program ended with {done.returncode} under Nsight Compute: {''.join(last)}")
    return parse(told.splitlines(), counters)


def parse(lines: Iterable[str], counters: Sequence[str]) -> list[Kernel]:
    """Return the counters of each kernel from the table that Nsight Compute writes, in bytes and seconds.

    Its first row names the columns, and its second row their units. Lines that begin with no quotation mark are its
    messages.

    Raises
    ------
    GpuguideError
        If there is no table, or a column or a unit is not as it must be.
    """
    rows = list(csv.DictReader(line for line in lines if line.startswith('"')))
    if not rows:
        raise GpuguideError("Nsight Compute saw no kernel between the start and the stop of the profiler.")
    units, *kernels = rows
    for name in counters:
        if units.get(name) not in UNITS:
            raise GpuguideError(f"Nsight Compute gives {name} in {units.get(name)!r}; known are {', '.join(UNITS)}.")
    return [{name: float(row[name].replace(",", "")) * UNITS[units[name]] for name in counters} for row in kernels]
