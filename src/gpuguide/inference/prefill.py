"""Pieces of prompts, read as one CUDA graph as soon as their shape has been seen before.

A prompt of a hundred tokens is little work for a GPU. The hundreds of kernels that read it take less time than the host
takes to launch them, so a graph pays here as it does for a step. But prompts have many lengths, and a graph has one. So
they are filled up to a multiple of :data:`MULTIPLE` tokens, a shape is captured the second time it is seen, and there
are at most :data:`MOST_GRAPHS` graphs. Large pieces stay as they are: their kernels outlast their launches.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from gpuguide.inference import plain
from gpuguide.inference.cache import Cache
from gpuguide.inference.decoder import Decoder
from gpuguide.inference.graph import Captured

MULTIPLE = 64
"""Tokens that pieces are filled up to a multiple of, on a GPU"""
MOST_TOKENS = 2048
"""Tokens of all chunks together for which a graph is captured, padding included"""
MOST_GRAPHS = 32
"""Number of graphs that are kept"""


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
        on_gpu = decoder.device.type == "cuda"
        self.multiple = MULTIPLE if on_gpu else 1
        self._pool = torch.cuda.graph_pool_handle() if on_gpu else None
        self._seen: set[tuple[int, int, int]] = set()
        self._graphs: dict[tuple[int, int, int], tuple[Captured, list[torch.Tensor]]] = {}
        """Captured prefills, and the memory that each reads its pieces from"""

    def __call__(self, tokens: torch.Tensor, rows: torch.Tensor, start: int, counts: torch.Tensor) -> torch.Tensor:
        """Read pieces, and return the logits after each. Parameters and result as :func:`plain.prefill`."""
        tokens = functional.pad(tokens, (0, -tokens.shape[1] % self.multiple))
        shape = (*tokens.shape, start)
        with torch.inference_mode():
            if shape in self._seen and shape not in self._graphs and len(self._graphs) < MOST_GRAPHS:
                self._graphs[shape] = self._capture(start, tokens, rows, counts)
            if shape in self._graphs:
                return self._replay(*self._graphs[shape], tokens, rows, counts)
            if tokens.numel() <= MOST_TOKENS:
                self._seen.add(shape)
            return plain.prefill(self.decoder, self.cache, tokens, rows, start, counts)

    def _capture(self, start: int, *given: torch.Tensor) -> tuple[Captured, list[torch.Tensor]]:
        tokens, rows, counts = inputs = [tensor.clone() for tensor in given]

        def read() -> torch.Tensor:
            return plain.prefill(self.decoder, self.cache, tokens, rows, start, counts)

        return Captured(read, self._uses(inputs), lambda: None, self._pool), inputs

    def _replay(self, captured: Captured, inputs: list[torch.Tensor], *given: torch.Tensor) -> torch.Tensor:
        for tensor, now in zip(inputs, given, strict=True):
            tensor.copy_(now)
        # All graphs use the same memory for what they compute, so a result is not safe where it is.
        return captured(self._uses(inputs)).clone()

    def _uses(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        return [*inputs, *self.cache.tensors()]
