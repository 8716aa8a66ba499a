"""The dataframe libraries are optional: each is imported when something needs it."""

from __future__ import annotations

import importlib
from types import ModuleType

from gpuguide.errors import GpuguideError

EXTRAS = {"cudf": "cuda12 or cuda13", "pylibcudf": "cuda12 or cuda13", "cudf_polars": "cuda12 or cuda13"}
"""The extra that a library comes with, where it is not ``dataframes``"""


def library(name: str) -> ModuleType:
    """Import a library.

    Raises
    ------
    GpuguideError
        If it is not installed; the message names the extra that brings it.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        extra = EXTRAS.get(name, "dataframes")
        raise GpuguideError(f"{name} cannot be imported ({error}); it comes with the extra {extra}.") from error
