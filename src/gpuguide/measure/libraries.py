"""The libraries that contenders call: how text names each, which version is here, and why one cannot be used."""

from __future__ import annotations

import ctypes
import functools
import importlib
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import metadata

from gpuguide.errors import unknown


@dataclass(frozen=True)
class Library:
    """A library that a contender may call."""

    title: str
    """Its name in text"""
    module: str
    """Module to import as a test: the part that is called, where the top imports next to nothing"""
    packages: tuple[str, ...] = ()
    """Packages that bring it, by the names that pip knows; the reader is told to install the first"""
    version: Callable[[], str | None] | None = None
    """Asks the library itself, where a package's version would say less"""


def cudnn_version() -> str | None:
    """Return the version of the cuDNN that PyTorch has loaded.

    The number is 10000 major + 100 minor + patch since 9, and 1000 major + 100 minor + patch before.
    Source: ``cudnn_version.h``.
    """
    import torch

    number = torch.backends.cudnn.version() if torch.version.cuda else None
    if number is None:
        return None
    major, rest = divmod(number, 10_000 if number >= 90_000 else 1_000)
    return f"{major}.{rest // 100}.{rest % 100}"


def cublas_version() -> str | None:
    """Return the version of the cuBLAS that PyTorch has loaded, or of its package where the library cannot be asked.

    A PyTorch for CUDA always has one; where neither tells its version, it is ``unknown``.
    """
    import torch

    if torch.version.cuda is None:
        return None
    packages = ("nvidia-cublas", "nvidia-cublas-cu13", "nvidia-cublas-cu12")
    return find_loaded_cublas(torch.version.cuda.partition(".")[0]) or find_installed_version(packages) or "unknown"


def find_loaded_cublas(major: str) -> str | None:
    """Ask the cuBLAS of a CUDA version that is loaded in this process for its version; ``None`` if none answers."""
    try:
        loaded = ctypes.CDLL(f"libcublas.so.{major}", mode=os.RTLD_NOLOAD)
        numbers = [ctypes.c_int() for _ in range(3)]
        # The parts of libraryPropertyType in order: MAJOR_VERSION, MINOR_VERSION, PATCH_LEVEL.
        failed = [loaded.cublasGetProperty(part, ctypes.byref(number)) for part, number in enumerate(numbers)]
    except (OSError, AttributeError):
        return None
    return None if any(failed) else ".".join(str(number.value) for number in numbers)


KNOWN = {
    "torch": Library("PyTorch", "torch", ("torch",)),
    "triton": Library("Triton", "triton", ("triton", "triton-windows", "pytorch-triton")),
    "numpy": Library("NumPy", "numpy", ("numpy",)),
    "cudnn": Library("cuDNN", "torch", version=cudnn_version),
    "cublas": Library("cuBLAS", "torch", version=cublas_version),
    "liger-kernel": Library(
        "Liger Kernel", "liger_kernel.transformers.functional", ("liger-kernel", "liger-kernel-nightly")
    ),
    "transformers": Library("Transformers", "transformers", ("transformers",)),
    "peft": Library("PEFT", "peft", ("peft",)),
    "torchao": Library("torchao", "torchao.quantization", ("torchao",)),
    "bitsandbytes": Library("bitsandbytes", "bitsandbytes", ("bitsandbytes",)),
    "flashoptim": Library("FlashOptim", "flashoptim", ("flashoptim",)),
    "flashinfer": Library("FlashInfer", "flashinfer.decode", ("flashinfer-python",)),
    "flash-attn-4": Library("FlashAttention-4", "flash_attn.cute", ("flash-attn-4",)),
    "humming": Library("Humming", "humming.layer", ("humming-kernels",)),
    "gemlite": Library("GemLite", "gemlite", ("gemlite",)),
    "fa3-fwd": Library("FlashAttention-3", "fa3_fwd_interface", ("fa3-fwd",)),
    "quack-kernels": Library("QuACK", "quack.softmax", ("quack-kernels",)),
    "nvidia-cutlass-dsl": Library("CuTe DSL", "cutlass", ("nvidia-cutlass-dsl",)),
    "cut-cross-entropy": Library("Cut Cross-Entropy", "cut_cross_entropy", ("cut-cross-entropy",)),
    "pandas": Library("pandas", "pandas", ("pandas",)),
    "polars": Library("Polars", "polars", ("polars", "polars-lts-cpu")),
    "duckdb": Library("DuckDB", "duckdb", ("duckdb",)),
    "pyarrow": Library("PyArrow", "pyarrow", ("pyarrow",)),
    "cudf": Library("cuDF", "cudf", ("cudf-cu13", "cudf-cu12", "cudf")),
    "dask-cudf": Library("Dask-cuDF", "dask_cudf", ("dask-cudf-cu13", "dask-cudf-cu12", "dask-cudf")),
    "rmm": Library("RMM", "rmm", ("rmm-cu13", "rmm-cu12", "rmm")),
}
"""Every library that a benchmark may name, by the name that records use"""
ON_THE_HOST = ("pandas", "polars", "duckdb")
"""Those that compute on the processor, whatever GPU the machine has"""
BETWEEN = ("pyarrow", "numpy")
"""Those that only carry data from one to another"""
PEERS = (
    "peft",
    "liger-kernel",
    "flash-attn-4",
    "fa3-fwd",
    "quack-kernels",
    "cut-cross-entropy",
    "flashinfer",
    "humming",
    "gemlite",
    "torchao",
    "bitsandbytes",
    "flashoptim",
)
"""Those that only benchmarks use, to compare with"""
CALLED_BY_ALL = ("torch", "triton", "numpy")
"""Libraries that every run names, whatever its contenders are"""
OF_CUDA = ("cudnn", "cublas")
"""Libraries that come with PyTorch for NVIDIA GPUs; every run on one names them, and no run on a processor"""


def get(name: str) -> Library:
    """Return the library of that name.

    Raises
    ------
    GpuguideError
        If none is known by it; the message lists the near names.
    """
    if name not in KNOWN:
        raise unknown("library", name, KNOWN)
    return KNOWN[name]


def title(name: str) -> str:
    """Return how text names a library; a record of another version of gpuguide may name one that is not known here.

    >>> title("cudnn"), title("another-library")
    ('cuDNN', 'another-library')
    """
    return KNOWN[name].title if name in KNOWN else name


def runs_on_host(called: Iterable[str]) -> bool:
    """Return whether all that is called computes on the host, whatever GPU the machine has.

    >>> runs_on_host(["polars", "pyarrow"]), runs_on_host(["pandas", "cudf"]), runs_on_host([])
    (True, False, False)
    """
    work = [name for name in called if name not in BETWEEN]
    return bool(work) and set(work) <= set(ON_THE_HOST)


def versions(names: Iterable[str]) -> dict[str, str]:
    """Return the versions of the libraries that are here; the others are left out."""
    found = {name: version(name) for name in dict.fromkeys(names)}
    return {name: text for name, text in found.items() if text is not None}


def version(name: str) -> str | None:
    """Return the version of a library that is here, ``None`` if it is not; a library without one is ``unknown``."""
    library = get(name)
    if library.version is not None:
        return library.version()
    if (text := find_installed_version(library.packages)) is not None:
        return text
    if why_not_here(name):
        return None
    return str(getattr(importlib.import_module(library.module.partition(".")[0]), "__version__", "unknown"))


def find_installed_version(packages: Iterable[str]) -> str | None:
    """Return the version of the first of several packages that is installed."""
    for package in packages:
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return None


@functools.cache
def why_not_here(name: str) -> str | None:
    """Return in one sentence why a library cannot be used in this process, or ``None`` if it can."""
    library = get(name)
    if library.version is not None:
        return None if library.version() else f"this build of PyTorch comes without {library.title}"
    try:
        importlib.import_module(library.module)
    except Exception as error:  # what fails may be a library below: a driver, a shared object, a version
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and f"{library.module}.".startswith(f"{missing}."):
            return f"{name} is not installed; pip install {library.packages[0]}"
        said = (str(error).strip() or "no message").splitlines()[0]
        return f"{name} cannot be imported ({type(error).__name__}: {said})"
    return None
