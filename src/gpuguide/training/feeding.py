"""Batches on time: gathered a step ahead while the GPU computes, or where all tokens already lie on the GPU.

A batch of 64 × 512 tokens is small, 256 KiB, and what it costs is waiting. Gathered and copied between two steps it
adds to each of them; gathered by a thread during the step before, into pinned memory from which the GPU copies by
itself, it adds next to nothing. Of a text that fits the GPU's memory (100M tokens are 200 MB) the host sends nothing
but where windows begin.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Self

import numpy as np
import torch

from gpuguide.training.tokens import Windows

Batch = tuple[torch.Tensor, torch.Tensor]
"""Tokens and targets, ``(batch, seq_len)`` both, int64, on the device"""


def split_windows(windows: torch.Tensor) -> Batch:
    """Return what is read and what is to be predicted of windows ``(batch, seq_len + 1)``, without a copy."""
    return windows[:, :-1], windows[:, 1:]


class PinnedFeeder:
    """Gives one batch after another; a thread gathers the next one in the meantime.

    Parameters
    ----------
    draw : callable
        From the number of a step to its windows, ``(batch, seq_len + 1)``, int64: for example
        :meth:`gpuguide.training.Windows.draw`.
    device : torch.device
        Where batches are needed.
    first : int
        Step to begin with.
    """

    def __init__(self, draw: Callable[[int], torch.Tensor], device: torch.device, first: int = 0) -> None:
        self.draw, self.device, self.step = draw, device, first
        self._is_gpu = device.type == "cuda"
        self._buffers: list[torch.Tensor | None] = [None, None]
        self._copied = [torch.cuda.Event() if self._is_gpu else None for _ in range(2)]
        self._thread = ThreadPoolExecutor(1, "batches")
        self._coming: Future[torch.Tensor] = self._thread.submit(self._gather, first)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.shutdown(cancel_futures=True)

    def next(self) -> Batch:
        """Return the batch of the next step; nobody waits for its copy."""
        windows, slot = self._coming.result(), self.step % 2
        batch = windows.to(self.device, non_blocking=True)
        if (event := self._copied[slot]) is not None:
            event.record()
        self.step += 1
        self._coming = self._thread.submit(self._gather, self.step)
        return split_windows(batch)

    def _gather(self, step: int) -> torch.Tensor:
        """Return the windows of a step; for a GPU in one of two pinned buffers, after its last copy is over."""
        windows = self.draw(step)
        if not self._is_gpu:
            return windows
        slot = step % 2
        buffer, event = self._buffers[slot], self._copied[slot]
        if buffer is None:
            buffer = self._buffers[slot] = torch.empty_like(windows, pin_memory=True)
        elif event is not None:
            event.synchronize()
        return buffer.copy_(windows)


class ResidentFeeder:
    """Gives one batch after another out of tokens that are on the GPU.

    Parameters
    ----------
    windows : Windows
        Windows of the run.
    device : torch.device
        Where the tokens are copied to, in as many bits as they have.
    first : int
        Step to begin with.
    rank, world_size : int
        Process among those that share a step.
    """

    def __init__(
        self, windows: Windows, device: torch.device, first: int = 0, rank: int = 0, world_size: int = 1
    ) -> None:
        self.windows, self.step, self.rank, self.world_size = windows, first, rank, world_size
        narrow = windows.tokens.dtype == np.uint16
        signed = np.array(windows.tokens).view(np.int16 if narrow else np.int32)  # PyTorch indexes signed integers
        self._tokens = torch.from_numpy(signed).to(device)
        self._mask = 0xFFFF if narrow else 0xFFFFFFFF
        self._within = torch.arange(windows.seq_len + 1, device=device)

    def next(self) -> Batch:
        """Return the batch of the next step."""
        starts = self.windows.starts(self.step)[self.rank :: self.world_size].unsqueeze(1)
        self.step += 1
        return split_windows(self._tokens[starts.to(self._within.device) + self._within].long() & self._mask)
