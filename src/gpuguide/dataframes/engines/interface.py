"""What every engine can do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from gpuguide.dataframes import operations

UserFunction = Callable[[float], float]


class Engine(Protocol):
    """One dataframe library. Its methods call the library's own and do nothing else with the data.

    A frame is whatever the library works on; :meth:`load` makes one from an Arrow table that
    :func:`gpuguide.dataframes.data.checked` returned. What each operation returns stands in
    :data:`gpuguide.dataframes.operations.OPERATIONS`.
    """

    name: str
    place: str
    """``cpu`` or ``gpu``"""

    def load(self, table: Any) -> Any:
        """Return an Arrow table as a frame."""

    def unload(self, result: Any) -> Any:
        """Return a frame or a result as an Arrow table in the host's memory."""

    def wait(self) -> None:
        """Return when all that was asked for is done."""

    def filter(self, frame: Any) -> Any:
        """Keep the rows whose value is large."""

    def group_by(self, frame: Any, key: str) -> Any:
        """Count and add up the values of each key."""

    def join(self, frame: Any, lookup: Any) -> Any:
        """Put rows beside those of the lookup with the same id."""

    def sort(self, frame: Any) -> Any:
        """Order the rows by value."""

    def filter_group_by(self, frame: Any) -> Any:
        """Count and add up the large values of each key."""

    def search(self, frame: Any) -> Any:
        """Find names and count their characters."""

    def window(self, frame: Any) -> Any:
        """Put the mean of its key beside each row."""

    def apply(self, frame: Any, function: UserFunction) -> Any:
        """Return the frame with ``result``, a user's function of each value. Missing values stay missing.

        Raises
        ------
        GpuguideError
            If the engine cannot run the function.
        """


def call(engine: Engine, operation: str, frame: Any, lookup: Any = None) -> Callable[[], Any]:
    """Return a call without arguments that does an operation of :data:`gpuguide.dataframes.operations.OPERATIONS`.

    Raises
    ------
    GpuguideError
        If there is no such operation.
    """
    calls: dict[str, Callable[[], Any]] = {
        "filter": lambda: engine.filter(frame),
        "groupby": lambda: engine.group_by(frame, "key"),
        "groupby-many": lambda: engine.group_by(frame, "id"),
        "join": lambda: engine.join(frame, lookup),
        "sort": lambda: engine.sort(frame),
        "filter-groupby": lambda: engine.filter_group_by(frame),
        "string": lambda: engine.search(frame),
        "window": lambda: engine.window(frame),
    }
    return calls[operations.get(operation).name]
