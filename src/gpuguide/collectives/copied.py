"""Means over ranks by copies between GPUs instead of NCCL's kernels.

NCCL's all-reduce is a kernel, and takes multiprocessors from the matmuls that it runs beside. Copies between GPUs can
be made by *copy engines* instead, and only the average and the barriers are kernels. Each rank owns a part of the
message::

    copy      its part of the others' messages       a reduce-scatter in one step
    average   the parts, the only step that computes
    copy      the others' parts, once they are means  an all-gather in one step

A rank receives ``2 (n − 1) / n`` of the message's bytes, as in a ring. Between the steps all ranks wait for each other,
on a stream beside that of the backward pass. They wait without a time limit, so a rank that is dead hangs the others.

Source: PyTorch, "Note: low-contention collectives", ``torch/distributed/_symmetric_memory/__init__.py``.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
import torch.distributed as dist

from gpuguide.errors import GpuguideError

ALIGNMENT = 16
"""Numbers that a rank's part of a message is a multiple of"""


class Work(Protocol):
    """A mean that is under way."""

    def wait(self) -> Any:
        """Return when the mean is there; on a GPU, let the current stream wait for it."""


class CopiedMeans:
    """Means of messages over ranks, by copies between GPUs that can read each other's memory.

    Gloo's ranks exchange the same parts as messages.

    Parameters
    ----------
    group : torch.distributed.ProcessGroup, optional
        The ranks; all of them if none is given.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self.group, self.world_size = group, dist.get_world_size(group)
        self.rank = dist.get_rank(group)
        self._handles: dict[int, Any] = {}
        """Of each message, by its address"""
        self._received: dict[torch.dtype, torch.Tensor] = {}
        """Receive buffers, one part for each other rank, which all messages of a dtype share"""
        self._side: torch.cuda.Stream | None = None

    def zeros(self, count: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Return a message of at least ``count`` numbers, all 0, in memory that other GPUs may read."""
        each = -(-count // (self.world_size * ALIGNMENT)) * ALIGNMENT
        if device.type != "cuda":
            return torch.zeros(self.world_size * each, dtype=dtype, device=device)
        import torch.distributed._symmetric_memory as symmetric

        return symmetric.empty(self.world_size * each, dtype=dtype, device=device).zero_()

    def share(self, message: torch.Tensor) -> None:
        """Let the other ranks read a message. All ranks share the same ones in the same order.

        Raises
        ------
        GpuguideError
            If the GPUs cannot read each other's memory.
        """
        each = len(message) // self.world_size
        held = self._received.get(message.dtype)
        if held is None or held.shape[1] < each:
            self._received[message.dtype] = message.new_empty(self.world_size - 1, each)
        if not message.is_cuda:
            return
        import torch.distributed._symmetric_memory as symmetric

        try:
            handle = symmetric.rendezvous(message, self.group or dist.group.WORLD)  # type: ignore[arg-type]
        except RuntimeError as error:
            raise GpuguideError(
                f"Rank {self.rank} cannot read the memory of the other GPUs: {str(error).splitlines()[0]}. "
                "Leave out by_copies."
            ) from error
        self._handles[message.data_ptr()] = handle
        self._side = self._side or torch.cuda.Stream(message.device)
        torch.cuda.synchronize(message.device)
        dist.barrier(self.group)

    def begin(self, message: torch.Tensor) -> Work:
        """Begin to replace a shared message by its mean over ranks."""
        if not message.is_cuda:
            self._exchange(message)
            return _Done()
        assert self._side is not None, "share a message before its mean"
        self._side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._side):
            self._copy(message)
            return _Done(self._side.record_event())

    def _copy(self, message: torch.Tensor) -> None:
        """Do the steps on the current stream."""
        handle, parts = self._handles[message.data_ptr()], message.chunk(self.world_size)
        own, received = parts[self.rank], self._received[message.dtype]
        others = [(self.rank + step) % self.world_size for step in range(1, self.world_size)]

        def part_at(owner: int, part: int) -> torch.Tensor:
            found: torch.Tensor = handle.get_buffer(owner, own.shape, own.dtype, part * len(own))
            return found

        handle.barrier(channel=0)  # all ranks have their message
        arrived = [received[number, : len(own)] for number in range(len(others))]
        for here, other in zip(arrived, others, strict=True):
            here.copy_(part_at(other, self.rank))
        average(own, arrived)
        handle.barrier(channel=0)  # all parts are means
        for other in others:
            parts[other].copy_(part_at(other, other))
        handle.barrier(channel=0)  # nobody reads here any longer

    def _exchange(self, message: torch.Tensor) -> None:
        """Do the steps with messages."""
        parts = message.chunk(self.world_size)
        all_parts = torch.empty_like(message)
        dist.all_to_all_single(all_parts, message, group=self.group)
        arrived = list(all_parts.chunk(self.world_size))
        del arrived[self.rank]
        average(parts[self.rank], arrived)
        dist.all_gather(list(parts), parts[self.rank].clone(), group=self.group)


def average(own: torch.Tensor, others: list[torch.Tensor]) -> None:
    """Set a part to its mean with those of the other ranks.

    >>> own = torch.tensor([1.0, 2.0])
    >>> average(own, [torch.tensor([3.0, 6.0])])
    >>> own
    tensor([2., 4.])
    """
    for other in others:
        own.add_(other)
    own.div_(len(others) + 1)


class _Done:
    """A mean on a stream of its own, or one that is there already."""

    def __init__(self, event: torch.cuda.Event | None = None) -> None:
        self.event = event

    def wait(self) -> None:
        """Let the current stream wait."""
        if self.event is not None:
            self.event.wait()
