"""The one exception that users see: a sentence that names the thing, the value and the remedy."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class GpuguideError(Exception):
    """Something the user can act on. Its message is complete: no traceback is needed to understand it."""


class UnknownName(GpuguideError):
    """A name that does not exist; on the command line it is a usage error."""


def unknown(kind: str, given: str, known: Iterable[str]) -> UnknownName:
    """Return the error for a name that does not exist, with the names that are near.

    Parameters
    ----------
    kind : str
        What the name stands for, for example ``"benchmark"``.
    given : str
        The name as the user wrote it.
    known : iterable of str
        The names that exist.
    """
    names = sorted(known)
    near = difflib.get_close_matches(given.lower(), names, n=3, cutoff=0.5)
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    return UnknownName(f"There is no {kind} named {given!r}.{hint} Known: {', '.join(names) or 'none'}.")
