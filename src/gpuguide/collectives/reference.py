"""The six collectives on lists: what each rank has before, and what it has after.

``parts`` has a list for each rank. Every function returns new lists, one for each rank.

Source: MPI Forum, "MPI: A Message-Passing Interface Standard", version 4.1, chapter 6.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

Parts = Sequence[Sequence[float]]
"""What each rank has, by rank"""


def broadcast(parts: Parts, root: int = 0) -> list[list[float]]:
    """Return a copy of the root's list for every rank.

    >>> broadcast([[1, 2], [3, 4]])
    [[1, 2], [1, 2]]
    """
    _length(parts)
    return [list(parts[root]) for _ in parts]


def reduce(parts: Parts, root: int = 0) -> list[list[float]]:
    """Return the sum of all lists for the root; the others keep their own.

    >>> reduce([[1, 2], [3, 4]])
    [[4, 6], [3, 4]]
    """
    total = _total(parts)
    return [total if rank == root else list(part) for rank, part in enumerate(parts)]


def all_reduce(parts: Parts) -> list[list[float]]:
    """Return the sum of all lists for every rank.

    >>> all_reduce([[1, 2], [3, 4]])
    [[4, 6], [4, 6]]
    """
    total = _total(parts)
    return [list(total) for _ in parts]


def all_gather(parts: Parts) -> list[list[float]]:
    """Return all lists, joined in the order of ranks, for every rank.

    >>> all_gather([[1, 2], [3, 4]])
    [[1, 2, 3, 4], [1, 2, 3, 4]]
    """
    _length(parts)
    joined = [value for part in parts for value in part]
    return [list(joined) for _ in parts]


def reduce_scatter(parts: Parts) -> list[list[float]]:
    """Return for each rank its own piece of the sum of all lists.

    >>> reduce_scatter([[1, 2], [3, 4]])
    [[4], [6]]
    """
    return _pieces(_total(parts), len(parts))


def all_to_all(parts: Parts) -> list[list[float]]:
    """Return for each rank the pieces that are meant for it, in the order of the ranks that sent them.

    >>> all_to_all([[1, 2], [3, 4]])
    [[1, 3], [2, 4]]
    """
    _length(parts)
    sent = [_pieces(part, len(parts)) for part in parts]
    return [[value for pieces in sent for value in pieces[rank]] for rank in range(len(parts))]


COLLECTIVES: Mapping[str, Callable[[Parts], list[list[float]]]] = MappingProxyType(
    {
        "broadcast": broadcast,
        "reduce": reduce,
        "all-reduce": all_reduce,
        "all-gather": all_gather,
        "reduce-scatter": reduce_scatter,
        "all-to-all": all_to_all,
    }
)


def _total(parts: Parts) -> list[float]:
    """Return the sum of all lists, added up in the order of ranks."""
    _length(parts)
    return [sum(column) for column in zip(*parts, strict=True)]


def _pieces(values: Sequence[float], ranks: int) -> list[list[float]]:
    """Return values in as many equal pieces as there are ranks."""
    if len(values) % ranks:
        raise ValueError(f"expected lists that {ranks} ranks can share equally, got {len(values)} numbers")
    size = len(values) // ranks
    return [list(values[rank * size : (rank + 1) * size]) for rank in range(ranks)]


def _length(parts: Parts) -> None:
    """Check that all ranks have equally many numbers."""
    lengths = [len(part) for part in parts]
    if len(set(lengths)) != 1:
        raise ValueError(f"expected equally many numbers on one rank or more, got {lengths} by rank")
