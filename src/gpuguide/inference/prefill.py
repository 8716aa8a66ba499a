"""Pieces of prompts, read as one CUDA graph as soon as their shape has been seen before.

A prompt of a hundred tokens is little work for a GPU. The hundreds of kernels that read it take less time than the host
takes to launch them, so a graph pays here as it does for a step. But prompts have many lengths, and a graph has one. So
they are filled up to a multiple of :data:`MULTIPLE` tokens, a shape is captured the second time it is seen, and there
are at most :data:`MOST_GRAPHS` graphs. Large pieces stay as they are: their kernels outlast their launches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from gpuguide.inference import plain
from gpuguide.inference.cache import Cache
from gpuguide.inference.decoder import Decoder
from gpuguide.inference.graph import Captured

MULTIPLE = 64
"""Tokens that pieces are filled up to a multiple of, on a GPU"""
MOST_TOKENS = 2048
"""Of all pieces together that a graph is made for, with those that only fill up"""
MOST_GRAPHS = 32
"""That are kept"""


class Prefill:
    """Reads pieces of prompts into a cache.

    Parameters
    ----------
    decoder : Decoder
        The model.
    cache : Cache
        For it.
    """

    def __init__(self, decoder: Decoder, cache: Cache) -> None:
        self.decoder, self.cache = decoder, cache
        self.multiple = MULTIPLE if decoder.device.type == "cuda" else 1
        self._seen: set[tuple[int, int, int]] = set()
        self._graphs: dict[tuple[int, int, int], _Graph] = {}
        self._pool: Any = None

    def __call__(self, tokens: torch.Tensor, rows: torch.Tensor, start: int, counts: torch.Tensor) -> torch.Tensor:
        """Read pieces, and return the logits after each. Parameters and result as :func:`plain.prefill`."""
        tokens = functional.pad(tokens, (0, -tokens.shape[1] % self.multiple))
        shape = (*tokens.shape, start)
        with torch.inference_mode():
            if shape in self._graphs:
                return self._graphs[shape](tokens, rows, counts)
            if shape in self._seen and len(self._graphs) < MOST_GRAPHS:
                self._graphs[shape] = graph = self._captured(start, tokens, rows, counts)
                return graph(tokens, rows, counts)
            if tokens.numel() <= MOST_TOKENS:
                self._seen.add(shape)
            return plain.prefill(self.decoder, self.cache, tokens, rows, start, counts)

    def _captured(self, start: int, *given: torch.Tensor) -> _Graph:
        if self._pool is None and self.decoder.device.type == "cuda":
            self._pool = torch.cuda.graph_pool_handle()
        tokens, rows, counts = inputs = [tensor.clone() for tensor in given]

        def read() -> torch.Tensor:
            return plain.prefill(self.decoder, self.cache, tokens, rows, start, counts)

        return _Graph(inputs, self.cache, Captured(read, _uses(inputs, self.cache), lambda: None, self._pool))


@dataclass
class _Graph:
    """A captured prefill, and the memory that it reads its pieces from."""

    inputs: list[torch.Tensor]
    cache: Cache
    captured: Captured

    def __call__(self, *given: torch.Tensor) -> torch.Tensor:
        for tensor, now in zip(self.inputs, given, strict=True):
            tensor.copy_(now)
        # All graphs use the same memory for what they compute, so a result is not safe where it is.
        return self.captured(_uses(self.inputs, self.cache)).clone()


def _uses(inputs: list[torch.Tensor], cache: Cache) -> list[torch.Tensor]:
    """Return the tensors whose memory a captured prefill reads and writes."""
    return [*inputs, cache.keys, cache.values, cache.table]
