"""pandas, and the libraries with its interface: the same calls run on pandas, under its accelerator, and on cuDF."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from gpuguide.dataframes.engines.interface import UserFunction, cannot_run
from gpuguide.dataframes.libraries import library
from gpuguide.dataframes.operations import PATTERN, THRESHOLD


class PandasLike:
    """The operations as pandas writes them. They use what cuDF has too, and nothing else."""

    name = "pandas"
    place = "cpu"

    def __init__(self, module: ModuleType | None = None) -> None:
        self.module = module or library("pandas")

    def load(self, table: Any) -> Any:
        """Return pandas' frame. Integers with missing values get pandas' nullable types, or they would be floats."""
        arrow = library("pyarrow")
        types = {
            arrow.string(): self.module.StringDtype("pyarrow"),
            arrow.large_string(): self.module.StringDtype("pyarrow"),
        }
        for field, column in zip(table.schema, table.columns, strict=True):
            if arrow.types.is_integer(field.type) and column.null_count:
                types[field.type] = getattr(self.module, f"Int{field.type.bit_width}Dtype")()
        return table.to_pandas(types_mapper=types.get)

    def unload(self, result: Any) -> Any:
        """Return a frame as an Arrow table; pandas' NaN becomes a missing value."""
        return library("pyarrow").Table.from_pandas(result, preserve_index=False)

    def wait(self) -> None:
        """Return at once: pandas is done when its calls return."""

    def filter(self, frame: Any) -> Any:
        """Keep the rows whose value is large."""
        return frame[frame["value"] > THRESHOLD]

    def group_by(self, frame: Any, key: str) -> Any:
        """Count and add up the values of each key."""
        return frame.groupby(key, sort=False).agg(count=("value", "count"), sum=("value", "sum")).reset_index()

    def join(self, frame: Any, lookup: Any) -> Any:
        """Put rows beside those of the lookup with the same id. Missing ids would match each other."""
        if lookup["id"].hasnans:
            lookup = lookup.dropna(subset=["id"])
        return frame.merge(lookup, on="id", how="inner")

    def sort(self, frame: Any) -> Any:
        """Order the rows by value."""
        return frame.sort_values("value", ignore_index=True)

    def filter_group_by(self, frame: Any) -> Any:
        """Count and add up the large values of each key."""
        return self.group_by(self.filter(frame), "key")

    def search(self, frame: Any) -> Any:
        """Find names and count their characters."""
        found = frame[frame["name"].str.contains(PATTERN, regex=False)]
        return found.assign(length=found["name"].str.len())

    def window(self, frame: Any) -> Any:
        """Put the mean of its key beside each row."""
        return frame.assign(mean=frame.groupby("key")["value"].transform("mean"))

    def apply(self, frame: Any, function: UserFunction) -> Any:
        """Return the frame with ``result``, a user's function of each value. cuDF compiles it for the GPU."""
        try:
            return frame.assign(result=frame["value"].apply(function))
        except Exception as error:
            instead = "Write it with arithmetic and comparisons of columns, or run it in pandas."
            raise cannot_run(self.name, function, error, instead) from error


class Accelerated(PandasLike):
    """pandas under ``cudf.pandas``: the same calls, which cuDF does where it can, and pandas where it cannot.

    The accelerator must have been switched on before pandas was imported: ``python -m cudf.pandas``, or
    ``cudf.pandas.install()``.

    Source: the accelerator's documentation, "How it works" and "Usage".
    """

    name = "cudf-pandas"
    place = "gpu"

    def load(self, table: Any) -> Any:
        """Return the accelerator's frame, with its data on the GPU."""
        return library("cudf.pandas").as_proxy_object(library("cudf").DataFrame.from_arrow(table))

    def unload(self, result: Any) -> Any:
        """Return a frame as an Arrow table, made by cuDF from its own frame."""
        return result.as_gpu_object().to_arrow(preserve_index=False)

    def wait(self) -> None:
        """Return when the GPU has nothing to do."""
        library("torch").cuda.synchronize()


def fell_back(result: Any) -> bool:
    """Return whether a result of ``cudf.pandas`` lies with pandas, and so was not computed by cuDF.

    Not every fallback is one that :func:`no_fallback` notices: those of attributes are not.
    """
    state = getattr(result, "_fsproxy_state", None)
    return state is not None and state.name == "SLOW"


@contextmanager
def no_fallback() -> Iterator[None]:
    """Let ``cudf.pandas`` raise an error in this block where it would fall back to pandas without a word.

    Source: cudf, ``python/cudf/cudf/pandas/fast_slow_proxy.py``, which reads this variable at every call.
    """
    before = os.environ.get("CUDF_PANDAS_FAIL_ON_FALLBACK")
    os.environ["CUDF_PANDAS_FAIL_ON_FALLBACK"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["CUDF_PANDAS_FAIL_ON_FALLBACK"]
        else:
            os.environ["CUDF_PANDAS_FAIL_ON_FALLBACK"] = before
