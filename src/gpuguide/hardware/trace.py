"""Traces of a GPU while a block of code ran: readings over time, their totals, and files of them."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from gpuguide.errors import GpuguideError, unknown
from gpuguide.hardware.totals import Row, Tally, TraceTotals

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass
class Trace:
    """Readings of one GPU over time. It grows while it is being watched.

    Examples
    --------
    >>> trace = Trace("a GPU", 0, 0.1, "2026-01-02T03:04:05+00:00", {"power": "W"})
    >>> for second, watts in enumerate([100.0, 300.0, 300.0]):
    ...     trace.rows.append(Row(float(second), 1e-3, {"power": watts}))
    >>> trace["power"].tolist(), trace.totals().energy_from_power
    ([100.0, 300.0, 300.0], 500.0)
    """

    device: str
    """The GPU's name, as its driver gives it"""
    index: int
    """The GPU's number in NVML, which counts all GPUs of the machine"""
    interval: float
    """Seconds between readings, as they were asked for"""
    started_at: str
    """ISO 8601, UTC"""
    units: dict[str, str]
    """The quantities that this device gives, with their units"""
    absent: dict[str, str] = field(default_factory=dict)
    """The quantities that it does not give, and why"""
    board: dict[str, float] = field(default_factory=dict)
    """Bounds of the readings: the names are those of :data:`gpuguide.hardware.quantities.BOARD`"""
    rows: list[Row] = field(default_factory=list)

    @property
    def seconds(self) -> NDArray[np.float64]:
        """Time of each reading, in seconds since the first."""
        return _array(row.seconds for row in tuple(self.rows))

    def __getitem__(self, name: str) -> NDArray[np.float64]:
        """Return the readings of one quantity, in the order in which they were made; NaN where one is missing.

        Raises
        ------
        GpuguideError
            If the device does not give it; the message says why.
        """
        if name in self.absent:
            raise GpuguideError(f"{self.device} gives no {name}: {self.absent[name]}.")
        if name not in self.units:
            raise unknown(f"quantity in the trace of {self.device}", name, self.units)
        return _array(row.readings.get(name, math.nan) for row in tuple(self.rows))

    def select_interval(self, start: float, end: float) -> Trace:
        """Return the part of a trace from one moment to another, in seconds since its first reading.

        Raises
        ------
        GpuguideError
            If there is no reading in it.
        """
        rows = [row for row in tuple(self.rows) if start <= row.seconds <= end]
        if not rows:
            raise GpuguideError(
                f"The trace of {self.device} holds no reading from {start:g} s to {end:g} s: it ends at "
                f"{self.seconds.max(initial=0):g} s."
            )
        return replace(self, rows=rows)

    def rate(self, name: str) -> float:
        """Return how fast a quantity that is counted, such as ``done`` or ``energy``, grew from first to last reading.

        Raises
        ------
        GpuguideError
            If there are fewer than two readings of it.
        """
        values = self[name].tolist()
        known = [(at, value) for at, value in zip(self.seconds.tolist(), values, strict=False) if not math.isnan(value)]
        if len(known) < 2:
            raise GpuguideError(
                f"A rate of {name} needs two readings, and this trace of {self.device} has {len(known)}."
            )
        return float((known[-1][1] - known[0][1]) / (known[-1][0] - known[0][0]))

    def renewal(self, name: str) -> float:
        """Return the seconds after which a reading changes, where it changes soon: how often the driver renews it.

        It is the shortest time from one change to the next, because a reading may be renewed and stay the same. It
        cannot be shorter than the time between two readings.

        Raises
        ------
        GpuguideError
            If the reading changed fewer than four times.
        """
        import numpy as np

        values = self[name]
        changed = self.seconds[1:][np.diff(values) != 0]
        if len(changed) < 4:
            raise GpuguideError(
                f"The {name} of {self.device} changed {len(changed)} times in this trace, too seldom to say how often "
                "it is renewed. Watch longer, or something that varies."
            )
        return float(np.diff(changed).min())

    def totals(self) -> TraceTotals:
        """Return means, extremes, energy and what it cost to read them.

        Raises
        ------
        GpuguideError
            If there is no reading yet.
        """
        return self.tally().totals(self.units)

    def tally(self) -> Tally:
        """Return the readings added up.

        Raises
        ------
        GpuguideError
            If there is no reading yet.
        """
        if not self.rows:
            raise GpuguideError(f"The trace of {self.device} holds no reading yet.")
        tally = Tally()
        for row in tuple(self.rows):
            tally.add(row)
        return tally

    def save(self, path: Path | str) -> None:
        """Write the trace to a file: JSON or CSV, by the ending of its name.

        Raises
        ------
        GpuguideError
            If the name ends otherwise, or the file cannot be written.
        """
        path = Path(path)
        text = (_to_json if check_form(path) == ".json" else _to_csv)(self)
        try:
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise _unwritable(path, error) from error

    @classmethod
    def load(cls, path: Path | str) -> Trace:
        """Read a trace that :meth:`save` wrote.

        Raises
        ------
        GpuguideError
            If there is no such file, or it holds no trace; the message says what is wrong with it.
        """
        path = Path(path)
        form = check_form(path)
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise GpuguideError(f"Cannot read the trace {path}: {error.strerror or error}.") from error
        try:
            return _from_json(text) if form == ".json" else _from_csv(text)
        except (ValueError, TypeError, KeyError, AttributeError, StopIteration) as error:
            problem = f"{error} is missing" if isinstance(error, KeyError) else str(error) or "it ends too early"
            raise GpuguideError(f"{path} holds no whole trace: {problem}. Save it again with Trace.save.") from error


# --- files -----------------------------------------------------------------------------------------------

HEAD = ("device", "index", "interval", "started_at", "units", "absent", "board")


def check_form(path: Path) -> str:
    """Return in which form a file of that name keeps a trace: ``.json`` or ``.csv``.

    Raises
    ------
    GpuguideError
        If its name ends otherwise.
    """
    if path.suffix not in (".json", ".csv"):
        raise GpuguideError(f"A trace is kept as .json or .csv, and {path.name!r} ends in neither. Rename it.")
    return path.suffix


def _to_json(trace: Trace) -> str:
    columns = {name: [_or_none(value) for value in trace[name].tolist()] for name in trace.units}
    head = {name: getattr(trace, name) for name in HEAD}
    return json.dumps(
        {**head, "seconds": trace.seconds.tolist(), "cost": [row.cost for row in trace.rows], "readings": columns},
        ensure_ascii=False,
    )


def _from_json(text: str) -> Trace:
    found = json.loads(text)
    return _trace(found, found["seconds"], found["cost"], found["readings"])


def _to_csv(trace: Trace) -> str:
    return _csv_head(trace) + "".join(_csv_line(trace, row) for row in trace.rows)


def _csv_head(trace: Trace) -> str:
    """One comment line with what is not a reading, then the columns; ``comment="#"`` lets pandas read it."""
    head = json.dumps({name: getattr(trace, name) for name in HEAD})
    return f"# {head}\n" + _csv_of(["seconds", "cost", *trace.units])


def _csv_line(trace: Trace, row: Row) -> str:
    readings = [row.readings.get(name, math.nan) for name in trace.units]
    return _csv_of([row.seconds, row.cost, *("" if math.isnan(value) else value for value in readings)])


def _csv_of(values: list[str | float]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(values)
    return text.getvalue()


class GrowingFile:
    """A CSV file of a trace to which each reading is written when it is made, so that a crash loses none.

    What :meth:`Trace.load` reads. A file of that name is replaced when the first reading comes.
    """

    def __init__(self, path: Path) -> None:
        if check_form(path) != ".csv":
            raise GpuguideError(
                f"Readings are written as they come, which {path.name!r} cannot take: name a .csv. Trace.load reads "
                "it, and Trace.save makes JSON of it."
            )
        self.path = path
        self._file: TextIO | None = None

    def append(self, trace: Trace) -> None:
        """Write the last reading of a trace.

        Raises
        ------
        GpuguideError
            If the file cannot be written.
        """
        try:
            if self._file is None:
                self._file = self.path.open("w", encoding="utf-8", newline="")
                self._file.write(_csv_head(trace))
            self._file.write(_csv_line(trace, trace.rows[-1]))
            self._file.flush()
        except OSError as error:
            raise _unwritable(self.path, error) from error

    def close(self) -> None:
        """Close the file, if there has been a reading."""
        if self._file is not None:
            self._file.close()


def _unwritable(path: Path, error: OSError) -> GpuguideError:
    return GpuguideError(f"Cannot write the trace {path}: {error.strerror or error}. Name another file.")


def _from_csv(text: str) -> Trace:
    first, *lines = text[: text.rfind("\n") + 1].splitlines()  # a line that was cut short does not count
    if not first.startswith("# "):
        raise ValueError("its first line is not '# ' and what the trace is of")
    table = list(csv.DictReader(lines))
    names = [name for name in (table[0] if table else {}) if name not in ("seconds", "cost")]
    columns = {name: [float(row[name]) if row[name] else None for row in table] for name in names}
    found = json.loads(first[2:])
    times, costs = ([float(row[name]) for row in table] for name in ("seconds", "cost"))
    return _trace(found, times, costs, columns or {name: [] for name in found["units"]})


def _trace(head: Any, seconds: list[float], costs: list[float], columns: Mapping[str, list[float | None]]) -> Trace:
    """Put a trace together from what a file held."""
    kept = {name: head[name] for name in HEAD}
    if set(columns) != set(kept["units"]):
        raise ValueError(f"its columns are {', '.join(columns)}, and its units are of {', '.join(kept['units'])}")
    lengths = {len(seconds), len(costs), *map(len, columns.values())}
    if len(lengths) > 1:
        raise ValueError(f"its columns have {min(lengths)} to {max(lengths)} rows")
    values = {
        name: [math.nan if value is None else float(value) for value in column] for name, column in columns.items()
    }
    rows = [
        Row(float(seconds[at]), float(costs[at]), {name: values[name][at] for name in values})
        for at in range(len(seconds))
    ]
    return Trace(**kept, rows=rows)


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else value


def _array(values: Iterator[float]) -> NDArray[np.float64]:
    import numpy as np

    return np.fromiter(values, dtype=np.float64)


Further = Mapping[str, tuple[str, Callable[[], float]]]
"""Other quantities to read at the same moments: name to unit and function"""
