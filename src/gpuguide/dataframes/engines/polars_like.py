"""Polars: each call at once, as a plan that is made and then run, or as a plan that is run on a GPU."""

from __future__ import annotations

from typing import Any

from gpuguide.dataframes.engines.interface import UserFunction, cannot_run
from gpuguide.dataframes.libraries import library
from gpuguide.dataframes.operations import PATTERN, THRESHOLD


class Polars:
    """The operations as expressions. Frames are ``polars.DataFrame``, and so are results."""

    name = "polars"
    place = "cpu"

    def __init__(self) -> None:
        self.polars = library("polars")

    def load(self, table: Any) -> Any:
        """Return Polars' frame, which shares the table's memory where it can."""
        return self.polars.from_arrow(table)

    def unload(self, result: Any) -> Any:
        """Return a frame as an Arrow table."""
        return self.collect(result).to_arrow()

    def wait(self) -> None:
        """Return at once: a collected frame is done."""

    def collect(self, result: Any) -> Any:
        """Return a result as it is."""
        return result

    def filter(self, frame: Any) -> Any:
        """Keep the rows whose value is large."""
        return self.collect(frame.filter(self.polars.col("value") > THRESHOLD))

    def group_by(self, frame: Any, key: str) -> Any:
        """Count and add up the values of each key."""
        return self.collect(self._group(frame, key))

    def _group(self, frame: Any, key: str) -> Any:
        """Return counts and sums. Rows without a key would be a group; it is dropped from the result."""
        value = self.polars.col("value")
        totals = frame.group_by(key).agg(count=value.count(), sum=value.sum())
        return totals.filter(self.polars.col(key).is_not_null())

    def join(self, frame: Any, lookup: Any) -> Any:
        """Put rows beside those of the lookup with the same id."""
        return self.collect(frame.join(lookup, on="id", how="inner"))

    def sort(self, frame: Any) -> Any:
        """Order the rows by value."""
        return self.collect(frame.sort("value", nulls_last=True))

    def filter_group_by(self, frame: Any) -> Any:
        """Count and add up the large values of each key."""
        return self.collect(self._group(frame.filter(self.polars.col("value") > THRESHOLD), "key"))

    def search(self, frame: Any) -> Any:
        """Find names and count their characters."""
        name = self.polars.col("name")
        found = frame.filter(name.str.contains(PATTERN, literal=True))
        return self.collect(found.with_columns(length=name.str.len_chars()))

    def window(self, frame: Any) -> Any:
        """Put the mean of its key beside each row."""
        col = self.polars.col
        mean = self.polars.when(col("key").is_not_null()).then(col("value").mean().over("key"))
        return self.collect(frame.with_columns(mean=mean))

    def apply(self, frame: Any, function: UserFunction) -> Any:
        """Return the frame with ``result``, a user's function of each value, called by Python row by row."""
        result = self.polars.col("value").map_elements(function, return_dtype=self.polars.Float64)
        try:
            return self.collect(frame.with_columns(result=result))
        except Exception as error:
            raise cannot_run(self.name, function, error, "Write it as expressions of columns.") from error


class LazyPolars(Polars):
    """The same as plans, each of which is optimised and run when the operation ends: nothing is left undone."""

    name = "polars-lazy"

    def load(self, table: Any) -> Any:
        """Return the beginning of a plan."""
        return super().load(table).lazy()

    def collect(self, result: Any) -> Any:
        """Run a plan."""
        return result.collect()

    def unload(self, result: Any) -> Any:
        """Return a result, which is collected, or the beginning of a plan, which is not, as an Arrow table."""
        return (result.collect() if hasattr(result, "collect") else result).to_arrow()


class GpuPolars(LazyPolars):
    """The same plans run by cuDF. Frames and results lie in the host's memory, so every call copies both ways."""

    name = "polars-gpu"
    place = "gpu"

    def collect(self, result: Any) -> Any:
        """Run a plan on the GPU. What cannot be run there is an error, and not run on the processor instead."""
        return result.collect(engine=self.polars.GPUEngine(raise_on_fail=True))
