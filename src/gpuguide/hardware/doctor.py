"""What is on this machine, and what each part of gpuguide needs."""

from __future__ import annotations

import importlib.util
import platform
import shutil
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from gpuguide.hardware.monitor import read_driver


@dataclass(frozen=True)
class Finding:
    """One thing that was looked for."""

    name: str
    present: bool
    detail: str
    """What was found, or what it is for and how to get it"""
    required: bool = False


def examine() -> list[Finding]:
    """Look for everything that some part of gpuguide uses."""
    return [python(), torch_build(), *gpu(), *optional_libraries(), compiler()]


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


def torch_build() -> Finding:
    """Look at PyTorch and what it was built for."""
    if importlib.util.find_spec("torch") is None:
        return Finding("PyTorch", False, "needed by everything; 'make site' installs it", True)
    import torch

    built = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU only"
    return Finding("PyTorch", True, f"{torch.__version__}, built for {built}", True)


def gpu() -> list[Finding]:
    """Look at the driver, the GPU, and what the GPU can do."""
    state = read_driver()
    driver = Finding(
        "NVIDIA driver",
        state.driver is not None,
        state.driver or "not found; without it pages and tests run on the CPU and published records are shown",
    )
    from gpuguide.errors import GpuguideError
    from gpuguide.hardware import datasheet, device

    try:
        found = device.current()
    except GpuguideError:
        return [
            driver,
            Finding("CUDA GPU", False, "PyTorch sees none; 'gpuguide bench run' needs one, or --device cpu"),
        ]
    if state.driver is None:
        driver = Finding("NVIDIA driver", True, "its version is not known without nvidia-ml-py")
    memory = f"{found.memory / 2**30:.0f} GiB"
    capability = "compute capability {}.{}".format(*found.capability or (0, 0))
    formats = Finding("Number formats", True, ", ".join(sorted(found.supports & {"fp16", "bf16", "tf32", "fp8"})))
    sheet = datasheet.find(found.name)
    known = sheet.name if sheet else "not in the table; measured values stand without datasheet values beside them"
    readings = [name for name in ("sm_clock", "power", "temperature") if getattr(state, name) is not None]
    return [
        driver,
        Finding("CUDA GPU", True, f"{found.name}, {memory}, {capability}"),
        formats,
        Finding("Datasheet", sheet is not None, known),
        Finding("Clock and power readings", bool(readings), ", ".join(readings) or "none; records will lack them"),
    ]


def optional_libraries() -> list[Finding]:
    """Look at the libraries that single parts use."""
    wanted = {
        "triton": ("triton", "GPU kernels written in Python; comes with PyTorch's CUDA builds"),
        "transformers": ("transformers", "the extra 'peers'"),
        "cudf": ("cudf", "dataframes on the GPU; the extra 'cuda12' or 'cuda13'"),
        "pynvml": ("nvidia-ml-py", "clock and power readings; the extra 'cuda12' or 'cuda13'"),
        "sphinx": ("sphinx", "building the site; the extra 'site'"),
    }
    return [library(module, package, purpose) for module, (package, purpose) in wanted.items()]


def library(module: str, package: str, purpose: str) -> Finding:
    """Look for one library without importing it."""
    if importlib.util.find_spec(module) is None:
        return Finding(package, False, f"not installed: {purpose}")
    try:
        return Finding(package, True, metadata.version(package))
    except metadata.PackageNotFoundError:
        return Finding(package, True, "installed, version unknown")


def compiler() -> Finding:
    """Look for a C compiler, which Triton and torch.compile use."""
    found = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    return Finding("C compiler", found is not None, "found" if found else "needed by Triton and torch.compile")
