"""Directions and checks of copies over a link, to the host or to another GPU."""

from __future__ import annotations

from gpuguide.interconnect.copies import Route
from gpuguide.interconnect.peers import PeerRoute


def count_directions(direction: str) -> int:
    """Return the number of directions in which bytes cross; the bandwidth is that of all together."""
    return 2 if direction == "both" else 1


def check(route: Route | PeerRoute) -> None:
    """Check that a copy arrives whole.

    Raises
    ------
    AssertionError
        If the checksum of a destination, overwritten before, is not that of its source.
    """
    assert route.arrives_whole(), "a destination does not hold what its source does"
