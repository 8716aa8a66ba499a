"""Output of the command line: data to standard output, everything else to standard error.

A listing is as wide as the terminal, and at most :data:`WIDTH` columns wide where there is none.
"""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table

from gpuguide.units import UNITS

WIDTH = 100
"""Columns of a listing that goes to a file or another program"""

err = Console(stderr=True, soft_wrap=True, highlight=False, markup=False, emoji=False)


def width() -> int:
    """Return how many columns a listing may have: those of the terminal, or what ``COLUMNS`` says."""
    return shutil.get_terminal_size((WIDTH, 24)).columns


def listing(*columns: str, whole: Iterable[str] = (), head: bool = True) -> Table:
    """Return an empty table; cells of the columns in ``whole`` are never broken over lines."""
    table = Table(box=None, pad_edge=False, show_header=head)
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=column in whole)
    return table


def break_name(name: str, columns: int) -> str:
    """Return a name broken at its hyphens into lines of so many columns, for a narrow cell."""
    return "\n".join(textwrap.wrap(name, columns))


def show(table: Table, *, stderr: bool = False) -> None:
    """Print a table to standard output, or to standard error if it only says how things went."""
    Console(width=width(), stderr=stderr, highlight=False, markup=False, emoji=False).print(table)


def say(text: str, indent: str = "") -> None:
    """Print a line to standard output, broken at words where it is too long; what follows is indented further.

    A word that is too long, such as a path, stays whole, so that it can be copied.
    """
    lines = textwrap.wrap(
        text,
        max(width(), 20),
        initial_indent=indent,
        subsequent_indent=indent + "    ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    print("\n".join(lines) or indent)


def duration(seconds: float) -> str:
    """Return a time span as a person says it: ``40 s``, ``12 min``."""
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def format_parts(sizes: Sequence[float]) -> tuple[list[str], str]:
    """Return sizes in bytes in one unit, rounded so that they add up to their total, and the total.

    >>> format_parts([1.004 * 2**30, 1.004 * 2**30, 1.004 * 2**30])
    (['1.01 GiB', '1.00 GiB', '1.00 GiB'], '3.01 GiB')
    """
    total = sum(sizes)
    unit = next((name for name in ("GiB", "MiB", "KiB") if total >= UNITS[name].factor), "B")
    scale = 1.0 if unit == "B" else UNITS[unit].factor
    digits = 0 if unit == "B" or all(size % scale == 0 for size in sizes) else 2
    step = 10**digits
    parts = round_to_sum([size / scale * step for size in sizes])
    return [f"{part / step:.{digits}f} {unit}" for part in parts], f"{sum(parts) / step:.{digits}f} {unit}"


def format_shares(sizes: Sequence[float]) -> list[str]:
    """Return the shares of sizes in their total as whole percentages that add up to 100.

    >>> format_shares([1, 1, 1])
    ['34 %', '33 %', '33 %']
    """
    total = sum(sizes) or 1
    return [f"{share} %" for share in round_to_sum([100 * size / total for size in sizes])]


def round_to_sum(values: Sequence[float]) -> list[int]:
    """Return values as whole numbers whose sum is the rounded sum: those with the largest rests are rounded up."""
    rounded = [int(value) for value in values]
    missing = round(sum(values)) - sum(rounded)
    for number in sorted(range(len(values)), key=lambda number: rounded[number] - values[number])[:missing]:
        rounded[number] += 1
    return rounded
