"""The state of this machine, and the needs of each part of gpuguide."""

from __future__ import annotations

import importlib
import importlib.util
import os
import platform
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from gpuguide.hardware import datasheet
from gpuguide.hardware.device import Device
from gpuguide.hardware.monitor import BoardState, read_board, read_driver
from gpuguide.hardware.monitor.connections import narrower
from gpuguide.hardware.processor import cores_available, processor_name

OLDEST_DRIVERS = {"12": 525, "13": 580}
"""The oldest driver that runs programs built for a major version of CUDA"""
DOCKER_SHARED_MEMORY = 64 * 2**20
"""Size of ``/dev/shm`` that Docker gives a container by default, in bytes"""


@dataclass(frozen=True)
class Finding:
    """One thing that was looked for."""

    name: str
    present: bool
    detail: str
    """Version or device, or else the use of the part and how to get it"""
    required: bool = False


def examine() -> list[Finding]:
    """Look for everything that some part of gpuguide uses."""
    return [
        python(),
        processor(),
        *shared_memory(),
        torch_build(),
        *gpu(),
        *optional_libraries(),
        cudf(),
        compiler(),
    ]


def records_folder(folder: Path | None) -> Finding:
    """Look at the folder where the reader's own records go."""
    if folder is None:
        return Finding(
            "Your records", False, "GPUGUIDE_RECORDS is set and empty: none are read, and 'bench run' needs --out"
        )
    held = len(list(folder.glob("*/*.json")))
    return Finding("Your records", True, f"{held} in {folder}")


def python() -> Finding:
    """Look at the interpreter."""
    return Finding("Python", True, f"{platform.python_version()} on {platform.system()} {platform.machine()}", True)


def processor() -> Finding:
    """Look at the host's processor, and at how many of its cores this process may use."""
    cores, mine = os.cpu_count() or 1, cores_available()
    usable = f"{cores} cores" if mine == cores else f"{mine} of {cores} cores for this process"
    return Finding("Processor", True, f"{processor_name()}, {usable}")


def shared_memory(folder: Path = Path("/dev/shm")) -> Iterator[Finding]:
    """Look at the memory that processes share; nothing on a system that has no folder for it."""
    if not folder.is_dir():
        return
    size = shutil.disk_usage(folder).total
    if size > DOCKER_SHARED_MEMORY:
        yield Finding("Shared memory", True, f"{size / 2**30:.1f} GiB in {folder}")
        return
    yield Finding(
        "Shared memory",
        False,
        f"{size / 2**20:.0f} MiB in {folder}, as in a container by default: too little for NCCL and for the workers of "
        "a DataLoader. Start the container with --shm-size=8g",
    )


def torch_build() -> Finding:
    """Look at PyTorch and what it was built for."""
    if importlib.util.find_spec("torch") is None:
        return Finding("PyTorch", False, "needed by everything; 'make site' installs it", True)
    import torch

    built = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU only"
    return Finding("PyTorch", True, f"{torch.__version__}, built for {built}", True)


def gpu() -> list[Finding]:
    """Look at the driver, the GPU, and what the GPU can do."""
    from gpuguide.errors import GpuguideError
    from gpuguide.hardware import device

    try:
        found = device.current()
    except GpuguideError:
        version = read_driver().driver
        without = "not found; without it pages and tests run on the CPU and published records are shown"
        old = explain_old_driver(version, find_torch_cuda())
        return [
            Finding("NVIDIA driver", version is not None and old is None, old or version or without),
            Finding("CUDA GPU", False, "PyTorch sees none; 'gpuguide bench run' needs one, or --device cpu"),
        ]
    chip = properties(found)
    uuid = None if chip is None else str(chip.uuid)
    state, board = read_driver(uuid), read_board(uuid)
    facts = [found.name, f"{found.memory / 2**30:.0f} GiB"]
    facts += [] if chip is None else [f"{chip.multi_processor_count} multiprocessors"]
    facts += ["compute capability {}.{}".format(*found.capability or (0, 0))]
    sheet = datasheet.find(found.name)
    known = sheet.name if sheet else "not in the table; measured values stand without datasheet values beside them"
    readings = [name for name in ("sm_clock", "power", "temperature") if getattr(state, name) is not None]
    return [
        Finding("NVIDIA driver", True, state.driver or "its version is not known without nvidia-ml-py"),
        Finding("CUDA GPU", True, ", ".join(facts)),
        *check_board(board),
        Finding("Number formats", True, ", ".join(sorted(found.supports & {"fp16", "bf16", "tf32", "fp8"}))),
        Finding("Datasheet", sheet is not None, known),
        Finding("Clock and power readings", bool(readings), ", ".join(readings) or "none; records will lack them"),
    ]


def find_torch_cuda() -> str | None:
    """Return the version of CUDA that PyTorch was built for; ``None`` without PyTorch or without CUDA."""
    if importlib.util.find_spec("torch") is None:
        return None
    import torch

    return torch.version.cuda


def explain_old_driver(driver: str | None, cuda: str | None) -> str | None:
    """Return why a driver cannot run programs built for a version of CUDA, and what can be done; ``None`` if it can.

    Source: CUDA Compatibility, minor version compatibility, the table of minimum drivers.
    """
    needed = OLDEST_DRIVERS.get((cuda or "").partition(".")[0])
    version = re.match(r"\d+", driver or "")
    if needed is None or version is None or int(version[0]) >= needed:
        return None
    told = f"{driver} is too old for PyTorch's build for CUDA {cuda}, which needs {needed} or newer"
    if needed > OLDEST_DRIVERS["12"] <= int(version[0]):
        return (
            f"{told}. Update it, or install a build for CUDA 12 with the extra 'cuda12': envs/requirements-cuda12.txt"
        )
    return f"{told}. Update the driver"


def properties(found: Device) -> Any | None:
    """Return what PyTorch knows of the chip; ``None`` for a made-up GPU."""
    import torch

    return torch.cuda.get_device_properties(0) if found.backend == "cuda" and torch.cuda.is_available() else None


def check_board(board: BoardState) -> Iterator[Finding]:
    """Yield the driver's readings of a GPU's memory, link and partition; nothing where it has none."""
    if board.memory_free is not None:
        yield Finding("Free GPU memory", True, f"{board.memory_free / 2**30:.1f} GiB")
    if board.link_generation is not None and board.link_width is not None:
        most = f"generation {board.most_link_generation}, {board.most_link_width} lanes"
        now = f"generation {board.link_generation}, {board.link_width} lanes"
        lower = f"now {now}, of at most {most}; an idle GPU may lower the generation"
        fault = narrower(board)
        yield Finding("PCIe link", fault is None, fault or (now if now == most else lower))
        if fault is None:
            yield Finding("What links carry", True, "'gpuguide links' measures this one, and those between GPUs")
    if board.is_partitioned is not None:
        on = "on; PyTorch sees one instance, and CUDA_VISIBLE_DEVICES chooses it by its UUID"
        yield Finding("MIG mode", True, on if board.is_partitioned else "off")


def optional_libraries() -> list[Finding]:
    """Look at the libraries that single parts use."""
    wanted = {
        "triton": ("triton", "GPU kernels written in Python; comes with PyTorch's CUDA builds"),
        "transformers": ("transformers", "the extra 'peers'"),
        "polars": ("polars", "dataframes on the host; the extra 'dataframes'"),
        "pynvml": ("nvidia-ml-py", "clock and power readings; the extra 'cuda12' or 'cuda13'"),
        "sphinx": ("sphinx", "building the site; the extra 'site'"),
    }
    return [library(module, package, purpose) for module, (package, purpose) in wanted.items()]


def library(module: str, package: str, purpose: str) -> Finding:
    """Look for one library without importing it."""
    found = importlib.util.find_spec(module)
    if found is None or found.origin is None:  # a folder of that name on the path is found too, and is no library
        return Finding(package, False, f"not installed: {purpose}")
    try:
        return Finding(package, True, metadata.version(package))
    except metadata.PackageNotFoundError:
        return Finding(package, True, "installed, version unknown")


def cudf() -> Finding:
    """Import cuDF, which can be installed and yet fail: it looks for a driver and for CUDA's libraries."""
    found = library("cudf", "cudf", "dataframes on the GPU; the extra 'cuda12' or 'cuda13'")
    if not found.present:
        return found
    try:
        module = importlib.import_module("cudf")
    except Exception as error:
        said = str(error).splitlines()[0] if str(error) else "no message"
        return Finding("cudf", False, f"installed, but importing it fails: {type(error).__name__}: {said}")
    return Finding("cudf", True, str(getattr(module, "__version__", found.detail)))


def compiler() -> Finding:
    """Look for a C compiler, which Triton and torch.compile use."""
    found = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    return Finding("C compiler", found is not None, "found" if found else "needed by Triton and torch.compile")
