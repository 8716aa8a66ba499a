"""Work of a fixed shape as one CUDA graph: hundreds of launches become one, and the host no longer sets the pace.

A graph remembers addresses, not tensors. It reads and writes the very memory that it was captured with, so inputs are
copied there, and it must not be replayed once a tensor that it uses has been replaced or has another shape: the old
memory would be read in silence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch

from gpuguide.triton_support.graphs import workspace_of_its_own

WARM_UPS = 2
"""Calls before the capture: kernels are compiled in the first, and libraries take their workspace"""


class Captured:
    """A function that works on fixed tensors, to be called again and again.

    On a GPU the calls replay a graph; elsewhere they are plain calls.

    Parameters
    ----------
    function : callable
        Takes nothing, reads and writes tensors in place, and returns a tensor. It must not wait for a GPU.
    uses : sequence of torch.Tensor
        The tensors whose memory it reads and writes.
    before : callable, optional
        Called before each warm-up call and before the capture's first replay, to put the state back that the warm-up
        calls have changed.
    pool : optional
        From :func:`torch.cuda.graph_pool_handle`: memory for what is computed on the way, shared with other graphs. A
        result must then be read before another of them is replayed.
    """

    def __init__(
        self,
        function: Callable[[], torch.Tensor],
        uses: Sequence[torch.Tensor],
        before: Callable[[], None],
        pool: Any = None,
    ) -> None:
        self.function = function
        self.addresses = [_address(tensor) for tensor in uses]
        self.graph: torch.cuda.CUDAGraph | None = None
        self.result: torch.Tensor | None = None
        if uses[0].is_cuda:
            self._capture(before, pool)

    def _capture(self, restore: Callable[[], None], pool: Any) -> None:
        stream = _side_stream(torch.cuda.current_device())
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                self.function()
                restore()
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with workspace_of_its_own(), torch.cuda.graph(self.graph, pool=pool, stream=stream):
            self.result = self.function()

    def __call__(self, uses: Sequence[torch.Tensor]) -> torch.Tensor:
        """Call the function, or replay its graph.

        Parameters
        ----------
        uses : sequence of torch.Tensor
            The tensors that it is meant to work on, to see that they still are those of the capture.

        Returns
        -------
        torch.Tensor
            The same one every time on a GPU: the next call overwrites it.

        Raises
        ------
        ValueError
            If a tensor was replaced, or has another shape.
        """
        for place, (then, now) in enumerate(zip(self.addresses, map(_address, uses), strict=True)):
            if then != now:
                raise ValueError(
                    f"Tensor {place} of a captured step was {_words(then)} and is now {_words(now)}. A graph reads the "
                    f"memory it was captured with; capture the step again."
                )
        if self.graph is None:
            return self.function()
        assert self.result is not None
        self.graph.replay()
        return self.result


@cache
def _side_stream(device: int) -> torch.cuda.Stream:
    """Return the stream of a device for all warm-ups and captures: libraries keep what belongs to a stream."""
    return torch.cuda.Stream(device)


Address = tuple[int, tuple[int, ...], torch.dtype, torch.device]


def _address(tensor: torch.Tensor) -> Address:
    return tensor.data_ptr(), tuple(tensor.shape), tensor.dtype, tensor.device


def _words(address: Address) -> str:
    pointer, shape, dtype, device = address
    return f"{dtype} of shape {shape} on {device} at {pointer:#x}"
