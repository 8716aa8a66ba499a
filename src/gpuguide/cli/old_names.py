"""Old names of options, which work for one release."""

from __future__ import annotations

from typing import TypeVar

import typer

Value = TypeVar("Value")


def merge_old_name(name: str, value: Value | None, old_name: str, old_value: Value | None) -> Value | None:
    """Return the value of an option that was given by its name or by its old name; ``None`` if by neither.

    Raises
    ------
    typer.BadParameter
        If both were given: a usage error, with exit status 2.
    """
    if value is not None and old_value is not None:
        raise typer.BadParameter(f"{old_name} is the old name of {name}; give {name} alone.")
    return old_value if value is None else value
