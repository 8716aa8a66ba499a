"""An all-reduce for small messages: every rank writes to every other, and each adds up for itself.

A ring sends a message around twice, in ``2 (n − 1)`` steps that wait for one another, and so moves the fewest bytes.
For a few KiB the steps are what costs, not the bytes. Here there is one step: each rank stores its whole message into
the memory of all others (*one shot*), and adds up what it finds in its own. That moves ``n − 1`` messages out of every
GPU, twice as many bytes with the flags, so that large messages are left to NCCL.

PyTorch's own one-shot all-reduce, ``torch.ops.symm_mem.one_shot_all_reduce``, reads from the others' memory between two
barriers. The kernel here needs neither; :mod:`gpuguide.interconnect.allreduce_kernels` says why.

On a CPU the same interface gathers all messages through Gloo and adds them up in the same order.

Sources: PyTorch, ``torch/csrc/distributed/c10d/symm_mem/CUDASymmetricMemoryOps.cu``; NCCL, ``src/device/prims_ll.h``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

__all__ = ["DTYPES", "OneShotAllReduce", "largest_message", "sum_in_order"]

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SENT_AT_MOST = 2**20
"""Bytes of messages that a rank stores into all others together; beyond, a ring moves fewer bytes"""


def largest_message(world_size: int) -> int:
    """Return the bytes up to which a message is sent in one shot.

    >>> [largest_message(world_size) // 1024 for world_size in (1, 2, 4, 8)]
    [1024, 1024, 341, 146]
    """
    return SENT_AT_MOST // max(1, world_size - 1)


def sum_in_order(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the sum of tensors of one shape, added up in fp32 in the order given and rounded once."""
    total = torch.zeros_like(parts[0], dtype=torch.float32)
    for part in parts:
        total += part.float()
    return total.to(parts[0].dtype)


class OneShotAllReduce:
    """The sum over all ranks of tensors on one device, the same bits on each.

    All ranks make the same calls, with tensors of the same shape and type, on one stream each. On GPUs a CUDA graph can
    capture them; all ranks must replay it then.

    Parameters
    ----------
    device : str or torch.device
        ``cuda:RANK``, or ``cpu``.
    group : torch.distributed.ProcessGroup, optional
        The ranks; all of them if none is given.
    largest : int, optional
        Bytes of a message from which on the group's own all-reduce is called; :func:`largest_message` if not given.

    Raises
    ------
    RuntimeError
        If the ranks' GPUs cannot reach each other's memory, or there is no process group.

    Notes
    -----
    In the process of each rank::

        all_reduce = OneShotAllReduce("cuda:0")
        total = all_reduce(partial)
    """

    def __init__(
        self, device: str | torch.device, group: dist.ProcessGroup | None = None, largest: int | None = None
    ) -> None:
        if not dist.is_initialized():
            raise RuntimeError("an all-reduce needs ranks that have joined; call torch.distributed.init_process_group")
        self.device = torch.device(device)
        self.group: Any = group if group is not None else dist.group.WORLD
        self.rank, self.world_size = dist.get_rank(self.group), dist.get_world_size(self.group)
        self.largest = largest_message(self.world_size) if largest is None else largest
        self.handle: Any = None
        if self.device.type == "cuda" and self.world_size > 1:
            self._set_up()

    def __call__(self, values: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """Return the sum of every rank's ``values``.

        Parameters
        ----------
        values : torch.Tensor
            Contiguous, of one of :data:`DTYPES`, on the device, the same shape on every rank.
        out : torch.Tensor, optional
            Where the sum goes: ``values`` itself, or another of its shape and type; a new tensor if none is given.

        Raises
        ------
        TypeError
            If the type is none of :data:`DTYPES`.
        ValueError
            If a tensor is not contiguous, lies elsewhere, or ``out`` differs from ``values``.
        """
        self._check(values)
        if out is None:
            out = torch.empty_like(values)
        else:
            self._check(out)
            if out.shape != values.shape or out.dtype != values.dtype:
                raise ValueError(
                    f"expected an out of {tuple(values.shape)}, {values.dtype}, got {tuple(out.shape)}, {out.dtype}"
                )
        if self.world_size == 1 or values.numel() == 0:
            return out if out is values else out.copy_(values)
        if values.nbytes > self.largest:
            if out is not values:
                out.copy_(values)
            dist.all_reduce(out, group=self.group)
            return out
        if self.handle is None:
            return out.copy_(self._gather(values))
        self._one_shot(values, out)
        return out

    def _check(self, values: torch.Tensor) -> None:
        if values.dtype not in DTYPES:
            raise TypeError(f"expected one of {', '.join(map(str, DTYPES))}, got {values.dtype}")
        if values.device != self.device or not values.is_contiguous():
            raise ValueError(
                f"expected a contiguous tensor on {self.device}, got strides {values.stride()} on {values.device}"
            )

    def _gather(self, values: torch.Tensor) -> torch.Tensor:
        """Gather every rank's message and add them up, as the kernel does."""
        parts = [torch.empty_like(values) for _ in range(self.world_size)]
        dist.all_gather(parts, values, group=self.group)
        return sum_in_order(parts)

    def _set_up(self) -> None:
        """Share a buffer among the ranks' GPUs, and wait until all of them are empty."""
        import torch.distributed._symmetric_memory as symmetric

        from gpuguide.interconnect.allreduce_kernels import WORDS

        self.capacity = -(-self.largest // (4 * WORDS)) * WORDS
        self.received = symmetric.empty(2 * self.world_size * self.capacity, dtype=torch.int64, device=self.device)
        self.received.zero_()
        try:
            self.handle = symmetric.rendezvous(self.received, self.group)
        except RuntimeError as error:
            raise RuntimeError(
                f"rank {self.rank} of {self.world_size} could not share memory with the other GPUs, which must be "
                f"peers: {str(error).splitlines()[0]}"
            ) from error
        self.buffers = torch.tensor(list(self.handle.buffer_ptrs), dtype=torch.int64, device=self.device)
        self.epochs = torch.zeros(self.capacity // WORDS, dtype=torch.int32, device=self.device)
        torch.cuda.synchronize(self.device)
        dist.barrier(self.group)

    def _one_shot(self, values: torch.Tensor, out: torch.Tensor) -> None:
        from gpuguide.interconnect.allreduce_kernels import launch

        with torch.cuda.device(self.device):
            launch(values, out, self.received, self.buffers, self.epochs, self.rank, self.world_size, self.capacity)
