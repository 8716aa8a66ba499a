"""What is said of a cell that failed: the page, the line, the cell, and the error; nothing else."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_LINE_IN_CELL = re.compile(r"Cell In\[\d+\], line (\d+)")


@dataclass(frozen=True)
class CellError:
    """A cell that did not run to its end."""

    cell: int
    """Its number among the page's code cells, counted from one; 0 if no cell had begun"""
    code: str
    """Its source"""
    line: int
    """The line in it that failed, counted from one"""
    error: str
    """What happened, on one line"""
    details: str = ""
    """The traceback, for the log"""

    def as_json(self) -> dict[str, Any]:
        """Return the fault as plain values."""
        return asdict(self)


def describe_exception(cell: int, code: str, error: Any) -> CellError:
    """Return the fault of a cell that raised; ``error`` is nbclient's."""
    details = _COLOUR.sub("", str(error.traceback))
    first = _LINE_IN_CELL.search(details)  # that of the page; the frames of the library follow it
    said = next(iter(_COLOUR.sub("", str(error.evalue)).strip().splitlines()), "")
    return CellError(cell, code, int(first[1]) if first else 1, f"{error.ename}: {said}".rstrip(": "), details)


def describe_timeout(cell: int, code: str, limit: float) -> CellError:
    """Return the fault of a cell that ran into the time limit."""
    return CellError(cell, code, 1, f"not done after {limit:g} s, which is the limit (nb_execution_timeout in conf.py)")


def describe_death(cell: int, code: str, status: int | None) -> CellError:
    """Return the fault of a cell during which the kernel died; ``status`` is the kernel's exit status."""
    import signal

    if status is None or status >= 0:
        how = f"exit status {status}"
    else:
        how = f"signal {-status}, {signal.strsignal(-status)}"
    return CellError(cell, code, 1, f"the kernel died ({how})")


def format_error(place: str, source: str, fault: CellError) -> str:
    """Return what to say of a fault of the page at ``place``, whose text is ``source``."""
    if not fault.cell:
        return f"{place}: {fault.error}"
    return f"{place}:{_first_line(source, fault) + fault.line - 1}: cell {fault.cell}: {fault.error}"


def _first_line(source: str, fault: CellError) -> int:
    """Return the line of the page on which the code of the cell begins."""
    lines = source.splitlines()
    fences = [number for number, line in enumerate(lines, 1) if line.startswith("```{code-cell}")]
    fence = fences[fault.cell - 1] if fault.cell <= len(fences) else 1
    first = next((line for line in fault.code.splitlines() if line.strip()), "")  # IPython counts from it
    return next((number for number in range(fence + 1, len(lines) + 1) if lines[number - 1] == first), fence)
