"""An all-reduce by send and receive: the values go around a ring of ranks twice, in parts.

There are as many parts as ranks. In the first phase (reduce-scatter) each rank sends a part to the next rank, which
adds its own, so that after ``n − 1`` steps each rank has one complete sum. In the second phase (all-gather) the sums
go around. With three ranks, which part rank 0 sends and receives::

    step    phase            sends     receives
    0       reduce-scatter   part 0    part 2, and adds it
    1       reduce-scatter   part 2    part 1, and adds it
    2       all-gather       part 1    part 0
    3       all-gather       part 0    part 2

Each rank sends ``2 (n − 1) / n`` times the bytes of its message. No algorithm that adds up in ranks, and not in the
switch, gets by with less.

While a rank adds, the link would be idle. So the values are cut into two halves whose rings run a step apart: while one
half is added up, the other half travels.

Source: P. Patarasuk, X. Yuan, "Bandwidth Optimal All-reduce Algorithms for Clusters of Workstations", 2009.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.nn import functional

RINGS = 2
"""So many that one half travels while the other is added up; more only make messages smaller"""


@dataclass(frozen=True)
class Step:
    """What a rank does in one step of the ring."""

    sends: int
    """Number of the part that goes to the next rank"""
    receives: int
    """Number of the part that comes from the rank before"""
    adds: bool
    """Whether what comes is added to the rank's own part, or replaces it"""


def steps(rank: int, world_size: int) -> list[Step]:
    """Return the ``2 (world_size − 1)`` steps of a rank.

    >>> [(step.sends, step.receives, step.adds) for step in steps(0, 3)]
    [(0, 2, True), (2, 1, True), (1, 0, False), (0, 2, False)]
    """
    sent = [(rank - number) % world_size for number in range(2 * (world_size - 1))]
    return [Step(part, (part - 1) % world_size, adds=number < world_size - 1) for number, part in enumerate(sent)]


class _Ring:
    """Values in one part a rank, and what of them is on its way."""

    def __init__(self, values: torch.Tensor, world_size: int) -> None:
        self.parts = values.tensor_split(world_size)
        self.arrival = torch.empty_like(self.parts[0])  # no part is longer
        self.works: list[dist.Work] = []
        self.under_way: Step | None = None

    def start(self, step: Step, before: int, after: int, group: dist.ProcessGroup | None) -> None:
        """Send a part to the rank after, and receive one from the rank before."""
        own = self.parts[step.receives]
        target = self.arrival[: len(own)] if step.adds else own
        self.works = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, self.parts[step.sends], group=group, group_peer=after),
                dist.P2POp(dist.irecv, target, group=group, group_peer=before),
            ]
        )
        self.under_way = step

    def finish(self) -> None:
        """Wait until the part is there, on a GPU its stream only, and add it."""
        for work in self.works:
            work.wait()
        if self.under_way is not None and self.under_way.adds:
            own = self.parts[self.under_way.receives]
            own += self.arrival[: len(own)]


def ring_all_reduce(values: torch.Tensor, group: dist.ProcessGroup | None = None, rings: int = RINGS) -> torch.Tensor:
    """Add up values over all ranks, in place, around rings of sends and receives.

    Parameters
    ----------
    values : torch.Tensor
        Of one shape and format on all ranks, contiguous. On GPUs the sum is there when the current stream gets there.
    group : torch.distributed.ProcessGroup, optional
        The ranks; all of them if none is given.
    rings : int
        Shares of the values that travel a step apart.

    Returns
    -------
    torch.Tensor
        ``values``

    Raises
    ------
    ValueError
        If the values are not contiguous, or ``rings`` is below 1.
    """
    if not values.is_contiguous():
        raise ValueError("expected contiguous values, since parts of them are sent as they lie; use .contiguous()")
    if rings < 1:
        raise ValueError(f"expected one ring or more, got {rings}")
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    if world_size == 1:
        return values
    before, after = (rank - 1) % world_size, (rank + 1) % world_size
    flat = values.view(-1)
    missing = max(0, rings * world_size - len(flat))  # no part may be empty
    given = functional.pad(flat, (0, missing)) if missing else flat
    shares = [_Ring(share, world_size) for share in given.tensor_split(rings)]
    for step in steps(rank, world_size):
        for share in shares:
            share.finish()
            share.start(step, before, after, group)
    for share in shares:
        share.finish()
    if missing:
        flat.copy_(given[: len(flat)])
    return values
