"""The one exception that users see: a sentence that names the thing, the value and the remedy.

Which error is raised depends on who can act on it:

* Functions of tensors and the cost models beside them raise what PyTorch's do: ``ValueError``, ``TypeError`` for a
  wrong type, ``RuntimeError`` where autograd cannot go on. Their callers are programs, and their modules do not import
  this one.
* Whatever takes what a person writes down raises :class:`GpuguideError`: names, files, configurations, the numbers of a
  calculator, a model and its prompt, the engines and operations of dataframes, the command line, which prints it as one
  sentence. So does what this machine lacks.
* A contender of a benchmark may raise anything. The record keeps it as the reason.

Any other exception in a module of the second kind is caught where it is raised, and never reaches a caller.
"""

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
