"""DuckDB: the operations as SQL. A frame is a table in a database in memory, a result an Arrow table."""

from __future__ import annotations

import itertools
import weakref
from dataclasses import dataclass
from typing import Any

from gpuguide.dataframes.engines.interface import UserFunction, cannot_run
from gpuguide.dataframes.libraries import library
from gpuguide.dataframes.operations import PATTERN, THRESHOLD


@dataclass(frozen=True, eq=False)
class Stored:
    """A table in the database. It is dropped when nothing refers to this any more."""

    name: str
    sum_type: str
    """What a sum of its values is: DOUBLE, or BIGINT for integers, whose sum DuckDB gives 128 bits"""


class DuckDB:
    """The operations as SQL."""

    name = "duckdb"
    place = "cpu"

    def __init__(self) -> None:
        self.connection = library("duckdb").connect(":memory:")
        self.names = (f"frame_{number}" for number in itertools.count())

    def load(self, table: Any) -> Any:
        """Store an Arrow table in the database."""
        name = next(self.names)
        self.connection.register("incoming", table)
        self.connection.execute(f"CREATE TABLE {name} AS SELECT * FROM incoming")
        self.connection.unregister("incoming")
        is_integer = "value" in table.column_names and "int" in str(table.schema.field("value").type)
        stored = Stored(name, "BIGINT" if is_integer else "DOUBLE")
        weakref.finalize(stored, _drop, self.connection, name).atexit = False
        return stored

    def unload(self, result: Any) -> Any:
        """Return a result as it is, or a stored table as an Arrow table."""
        return self._run(f"SELECT * FROM {result.name}") if isinstance(result, Stored) else result

    def wait(self) -> None:
        """Return at once: a query is done when its result is there."""

    def _run(self, query: str) -> Any:
        return self.connection.sql(query).to_arrow_table()

    def filter(self, frame: Any) -> Any:
        """Keep the rows whose value is large."""
        return self._run(f"SELECT * FROM {frame.name} WHERE value > {THRESHOLD}")

    def group_by(self, frame: Any, key: str) -> Any:
        """Count and add up the values of each key. Rows without a key are a group to SQL."""
        return self._run(self._group(frame, key))

    def _group(self, frame: Any, key: str, where: str = "") -> str:
        totals = f"count(value) AS count, CAST(sum(value) AS {frame.sum_type}) AS sum"
        return f"SELECT {key}, {totals} FROM {frame.name} {where} GROUP BY {key} HAVING {key} IS NOT NULL"

    def join(self, frame: Any, lookup: Any) -> Any:
        """Put rows beside those of the lookup with the same id."""
        return self._run(f"SELECT * FROM {frame.name} JOIN {lookup.name} USING (id)")

    def sort(self, frame: Any) -> Any:
        """Order the rows by value."""
        return self._run(f"SELECT * FROM {frame.name} ORDER BY value NULLS LAST")

    def filter_group_by(self, frame: Any) -> Any:
        """Count and add up the large values of each key."""
        return self._run(self._group(frame, "key", f"WHERE value > {THRESHOLD}"))

    def search(self, frame: Any) -> Any:
        """Find names and count their characters."""
        return self._run(f"SELECT *, length(name) AS length FROM {frame.name} WHERE contains(name, '{PATTERN}')")

    def window(self, frame: Any) -> Any:
        """Put the mean of its key beside each row."""
        mean = "CASE WHEN key IS NOT NULL THEN avg(value) OVER (PARTITION BY key) END AS mean"
        return self._run(f"SELECT *, {mean} FROM {frame.name}")

    def apply(self, frame: Any, function: UserFunction) -> Any:
        """Return the frame with ``result``, a user's function of each value, called by Python row by row."""
        self.connection.create_function("user_function", function, ["DOUBLE"], "DOUBLE")
        try:
            return self._run(f"SELECT *, user_function(value) AS result FROM {frame.name}")
        except Exception as error:
            raise cannot_run(self.name, function, error, "Write it in SQL.") from error
        finally:
            self.connection.remove_function("user_function")


def _drop(connection: Any, name: str) -> None:
    connection.execute(f"DROP TABLE IF EXISTS {name}")
