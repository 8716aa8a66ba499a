"""The dataframe libraries are optional: each is imported when something needs it."""

from __future__ import annotations

import importlib
from types import ModuleType

from gpuguide.errors import GpuguideError

EXTRAS = dict.fromkeys(("cudf", "cudf.pandas", "pylibcudf", "rmm", "cudf_polars"), "cuda12 or cuda13")
"""The extra that a library comes with, where it is not ``dataframes``"""


def library(name: str) -> ModuleType:
    """Import a library.

    Raises
    ------
    GpuguideError
        If it is not installed, or fails while it is imported; the message names the extra that brings it.
    """
    try:
        return importlib.import_module(name)
    except Exception as error:  # cuDF's is a RuntimeError where it finds no CUDA library
        extra = EXTRAS.get(name, "dataframes")
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise GpuguideError(f"{name} cannot be imported ({reason}); {explain_extra(extra)}.") from error


def explain_extra(extra: str) -> str:
    """Return the words that name an extra, and the command that installs it where gpuguide is."""
    command = f"pip install 'gpuguide[{extra.split()[-1]}]'"
    return f"it comes with the extra {extra}: {command}"
