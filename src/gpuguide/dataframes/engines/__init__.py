"""The dataframe libraries that operations run on, each behind the same few calls.

>>> sorted(engines())
['cudf', 'cudf-pandas', 'duckdb', 'pandas', 'polars', 'polars-gpu', 'polars-lazy']
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable

from gpuguide.dataframes.engines import cudf_frames
from gpuguide.dataframes.engines.cudf_frames import CuDF
from gpuguide.dataframes.engines.duckdb_sql import DuckDB
from gpuguide.dataframes.engines.interface import DataframeEngine, call, call_with_transfer, check
from gpuguide.dataframes.engines.pandas_like import Accelerated, PandasLike
from gpuguide.dataframes.engines.polars_like import GpuPolars, LazyPolars, Polars
from gpuguide.dataframes.libraries import explain_extra
from gpuguide.errors import GpuguideError, unknown

__all__ = ["ENGINES", "DataframeEngine", "call", "call_with_transfer", "check", "engine", "engines"]

ENGINES: dict[str, Callable[[], DataframeEngine]] = {
    "pandas": PandasLike,
    "polars": Polars,
    "polars-lazy": LazyPolars,
    "polars-gpu": GpuPolars,
    "duckdb": DuckDB,
    "cudf": CuDF,
    "cudf-pandas": Accelerated,
}


def engine(name: str) -> DataframeEngine:
    """Return an engine, ready for use.

    Raises
    ------
    GpuguideError
        If there is none of that name, or it cannot run here; the message says why, and which ones can.
    """
    if name not in ENGINES:
        raise unknown("engine", name, ENGINES)
    if why := why_not_here(name):
        here = [other for other, reason in engines().items() if reason is None]
        raise GpuguideError(f"{why}. Engines that can run here: {', '.join(here) or 'none'}.")
    return ENGINES[name]()


def engines() -> dict[str, str | None]:
    """Return all engines, each with the reason why it cannot run here, or ``None`` if it can."""
    return {name: why_not_here(name) for name in ENGINES}


def why_not_here(name: str) -> str | None:
    """Return why an engine cannot run here, or ``None`` if it can."""
    if name in ("cudf", "cudf-pandas", "polars-gpu") and (why := cudf_frames.why_not_here()):
        return why
    if name == "cudf-pandas":
        return None if is_accelerated() else "cudf.pandas is not switched on; start Python with -m cudf.pandas"
    needed = {"pandas": "pandas", "duckdb": "duckdb", "cudf": "cudf"}.get(name, "polars")
    for package in (needed, "pyarrow", *(["cudf_polars"] if name == "polars-gpu" else [])):
        if importlib.util.find_spec(package) is None:
            extra = "cuda12 or cuda13" if package.startswith("cudf") else "dataframes"
            return f"{package} is not installed; {explain_extra(extra)}"
    if name == "pandas" and is_accelerated():
        return "pandas runs under cudf.pandas in this process, where its times would not be its own"
    return None


def is_accelerated() -> bool:
    """Return whether ``cudf.pandas`` is switched on in this process. Where it was never imported it is not."""
    return bool(getattr(sys.modules.get("cudf.pandas"), "LOADED", False))
