"""A feed-forward layer whose two matrices are divided among GPUs, and the all-reduce that this costs.

The first matrix is divided by columns, so that each rank computes its own part of the inner activations and needs
nothing from the others. The second is divided by rows, so that each rank multiplies its own part with its own rows.
What comes out is a sum over all inner positions, of which each rank has a part: one all-reduce of the outputs::

    rank 0   x · up[:, :half]   activation   · down[:half]   partial sum ┐
                                                                         ├ all-reduce
    rank 1   x · up[:, half:]   activation   · down[half:]   partial sum ┘

The all-reduce needs the finished partial sums, and the next layer needs its result. To overlap the two, the tokens are
cut into chunks: while the sums of one chunk travel, the next chunk is computed.

Source: M. Shoeybi et al., Megatron-LM, 2019, section 3.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.nn import functional

__all__ = ["Activation", "Reduce", "TensorParallelMLP", "part_of", "whole_layer"]

Reduce = Callable[[torch.Tensor], torch.Tensor]
"""Returns the sum of a tensor over all ranks"""
Activation = Callable[[torch.Tensor], torch.Tensor]
"""Taken of every inner number by itself"""


def whole_layer(
    hidden: torch.Tensor, up: torch.Tensor, down: torch.Tensor, activation: Activation = functional.gelu
) -> torch.Tensor:
    """Return ``activation(hidden · up) · down``, on one device.

    Parameters
    ----------
    hidden : torch.Tensor
        (tokens, hidden).
    up : torch.Tensor
        (hidden, inner).
    down : torch.Tensor
        (inner, hidden).
    activation : callable
        Taken of every inner number by itself.
    """
    return activation(hidden @ up) @ down


def part_of(inner: int, rank: int, world_size: int) -> slice:
    """Return which inner positions a rank has.

    Raises
    ------
    ValueError
        If they cannot be divided equally.

    Examples
    --------
    >>> part_of(12, rank=1, world_size=3)
    slice(4, 8, None)
    """
    if inner % world_size:
        raise ValueError(
            f"expected an inner width that {world_size} ranks can share equally, got {inner}; "
            f"the next is {inner + world_size - inner % world_size}"
        )
    share = inner // world_size
    return slice(rank * share, (rank + 1) * share)


class TensorParallelMLP:
    """One rank's part of the layer.

    Parameters
    ----------
    up : torch.Tensor
        (hidden, inner / world_size): this rank's columns.
    down : torch.Tensor
        (inner / world_size, hidden): this rank's rows.
    activation : callable
        Taken of every inner number by itself.
    group : torch.distributed.ProcessGroup, optional
        The ranks; all of them if none is given.

    Raises
    ------
    ValueError
        If the two shapes do not belong together.
    """

    def __init__(
        self,
        up: torch.Tensor,
        down: torch.Tensor,
        activation: Activation = functional.gelu,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        if up.ndim != 2 or up.shape != down.shape[::-1]:
            raise ValueError(
                f"expected up as (hidden, part) and down as (part, hidden), got {tuple(up.shape)}, {tuple(down.shape)}"
            )
        self.up, self.down, self.activation, self.group = up, down, activation, group

    @classmethod
    def from_whole(
        cls, up: torch.Tensor, down: torch.Tensor, rank: int, world_size: int, activation: Activation = functional.gelu
    ) -> TensorParallelMLP:
        """Return a rank's part of the whole layer's matrices.

        Parameters
        ----------
        up, down : torch.Tensor
            (hidden, inner) and (inner, hidden).
        rank, world_size : int
            Which part, of how many.
        activation : callable
            Taken of every inner number by itself.

        Raises
        ------
        ValueError
            If the inner positions cannot be divided equally.
        """
        part = part_of(up.shape[1], rank, world_size)
        return cls(up[:, part].contiguous(), down[part].contiguous(), activation)

    def compute(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return this rank's part of the sum, (tokens, hidden), without any communication."""
        return whole_layer(hidden, self.up, self.down, self.activation)

    def communicate(self, partial: torch.Tensor) -> torch.Tensor:
        """Return the sum of all ranks' parts, in the place of this rank's."""
        dist.all_reduce(partial, group=self.group)
        return partial

    def one_after_the_other(self, hidden: torch.Tensor, reduce: Reduce | None = None) -> torch.Tensor:
        """Return the layer's output: first everything is computed, and then everything is added up.

        Parameters
        ----------
        hidden : torch.Tensor
            (tokens, hidden), the same on every rank.
        reduce : callable, optional
            Another all-reduce than the group's, such as :class:`~gpuguide.interconnect.allreduce.OneShotAllReduce`.
        """
        return (reduce or self.communicate)(self.compute(hidden))

    def forward_overlapped(self, hidden: torch.Tensor, chunks: int = 4) -> torch.Tensor:
        """Return the layer's output: while one chunk of the tokens is all-reduced, the next is computed.

        Parameters
        ----------
        hidden : torch.Tensor
            (tokens, hidden), the same on every rank.
        chunks : int
            Number of chunks. Their sizes differ by at most one token, and none is empty.

        Raises
        ------
        ValueError
            If ``chunks`` is below 1.
        """
        if chunks < 1:
            raise ValueError(f"expected one chunk or more, got {chunks}")
        out = torch.empty(len(hidden), self.down.shape[1], dtype=hidden.dtype, device=hidden.device)
        count = max(1, min(chunks, len(hidden)))
        under_way = []
        for part, into in zip(hidden.tensor_split(count), out.tensor_split(count), strict=True):
            torch.mm(self.activation(part @ self.up), self.down, out=into)
            under_way.append(dist.all_reduce(into, group=self.group, async_op=True))
        for work in under_way:
            if work is not None:
                work.wait()
        return out
