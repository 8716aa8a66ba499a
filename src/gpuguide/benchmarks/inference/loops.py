"""Our plain loop as PyTorch runs it without our kernels: compiled, or with PyTorch's own for narrow weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import torch
from torch.nn import functional

from gpuguide.inference import PAGE, Cache, Decoder, plain, static_cache
from gpuguide.inference.cache import NOBODY
from gpuguide.inference.decoder import Layer, Linear
from gpuguide.inference.graph import Captured
from gpuguide.inference.prefill import Prefill
from gpuguide.quantization import Int4, Int8, unpack

INNER_K_TILES = 8
"""Layout of the weights for PyTorch's int4 matmul: the largest tiles that it knows"""


class PlainLoop:
    """Greedy texts by :mod:`gpuguide.inference.plain`, with a step that is captured in a CUDA graph.

    Parameters
    ----------
    decoder : Decoder
        The model.
    rows, capacity : int
        Texts at a time, and tokens that each can have.
    compiled : bool
        Whether ``torch.compile`` makes the step's kernels. It compiles the whole step at once, in its default mode:
        ``reduce-overhead`` makes the same kernels and captures them, which is done here.
    """

    def __init__(self, decoder: Decoder, rows: int, capacity: int, *, compiled: bool = False) -> None:
        self.decoder = decoder
        self.cache = CacheByLayer(static_cache(decoder, rows, capacity))
        self.rows = torch.arange(rows, device=decoder.device)
        self.tokens = torch.zeros(rows, dtype=torch.int64, device=decoder.device)
        self.lengths = torch.zeros_like(self.tokens)
        self.texts = torch.zeros(rows, capacity + 1, dtype=torch.int64, device=decoder.device)
        self.compiled = compiled
        self.prefill = Prefill(decoder, self.cache)
        self.captured: Captured | None = None

    def start(self, prompts: Sequence[Sequence[int]]) -> torch.Tensor:
        """Read prompts of one length, and write the first token after each."""
        tokens = torch.tensor(prompts).to(self.decoder.device)
        seq = tokens.shape[1]
        with torch.inference_mode():
            first = self.prefill(tokens, self.rows, 0, torch.full_like(self.rows, seq)).argmax(-1)
            self.texts[:, :seq] = tokens
            self.texts[:, seq] = first
            self.tokens.copy_(first)
            self.lengths.fill_(seq)
        return first

    def step(self) -> torch.Tensor:
        """Write one more token of each text."""
        with torch.inference_mode():
            if self.captured is None:
                self.captured = self._capture()
            return self.captured(self._state())

    def _capture(self) -> Captured:
        tokens, lengths = self.tokens.clone(), self.lengths.clone()

        def restore() -> None:
            self.tokens.copy_(tokens)
            self.lengths.copy_(lengths)

        forward: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = self._next
        if self.compiled:
            torch.compiler.reset()  # what was compiled for another case would count against the limit of recompilations
            forward = torch.compile(forward, fullgraph=True, dynamic=False)

        def step() -> torch.Tensor:
            self.tokens.copy_(forward(self.tokens, self.lengths))
            self.lengths.add_(1)
            self.texts.scatter_(1, self.lengths[:, None], self.tokens[:, None])
            return self.tokens

        return Captured(step, self._state(), restore)

    def _next(self, tokens: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        return plain.decode(self.decoder, self.cache, tokens[:, None], self.rows, lengths)[:, 0].argmax(-1)

    def _state(self) -> list[torch.Tensor]:
        return [self.tokens, self.lengths, self.texts]  # nobody else has the cache


class CacheByLayer(Cache):
    """A cache with tensors of its own for each layer.

    The compiler changes a tensor in place if nobody else reads it. One tensor of all layers it copies at every step.
    """

    keys: list[torch.Tensor]  # type: ignore[assignment]
    values: list[torch.Tensor]  # type: ignore[assignment]

    def __init__(self, whole: Cache) -> None:
        self.keys = [layer.clone() for layer in whole.keys]
        self.values = [layer.clone() for layer in whole.values]
        self.table = whole.table

    def tensors(self) -> list[torch.Tensor]:
        """Return its memory, as :meth:`gpuguide.inference.Cache.tensors`."""
        return [*self.keys, *self.values, self.table]

    def write(
        self, layer: int, rows: torch.Tensor, positions: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> None:
        """Put away keys and values, as :meth:`gpuguide.inference.Cache.write`."""
        pages = torch.where(positions >= 0, self.table[rows[:, None], positions // PAGE].long(), NOBODY)
        place = positions % PAGE
        self.keys[layer][pages, :, place] = keys.transpose(1, 2)
        self.values[layer][pages, :, place] = values.transpose(1, 2)


# --- PyTorch's own kernels for narrow weights --------------------------------------------------------------


class _Kept(torch.Tensor):
    """A matrix as a kernel of PyTorch takes it. ``torch.nn.functional.linear`` with it calls that kernel.

    It is a tensor so that :mod:`gpuguide.inference.plain` hands it to that function; as one it is empty.
    """

    packed: torch.Tensor
    scales: torch.Tensor

    @classmethod
    def pack(cls, packed: torch.Tensor, scales: torch.Tensor) -> Self:
        """Return a matrix with its scales."""
        kept = torch.empty(0).as_subclass(cls)
        kept.packed, kept.scales = packed, scales
        return kept

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call the kernel where the matrix is multiplied by; elsewhere it is the empty tensor."""
        if func is not functional.linear:
            return super().__torch_function__(func, types, args, kwargs or {})
        values, kept, bias = (*args, None)[:3]
        result = kept.call_kernel(values.flatten(0, -2)).unflatten(0, values.shape[:-1])
        return result if bias is None else result + bias

    def call_kernel(self, values: torch.Tensor) -> torch.Tensor:  # a name that torch.Tensor does not have
        """Multiply ``(rows, inputs)`` by the matrix: ``(rows, outputs)``."""
        raise NotImplementedError


class TorchInt8(_Kept):
    """Eight bits a weight: ``(outputs, inputs)``, int8, and a scale for each output."""

    def call_kernel(self, values: torch.Tensor) -> torch.Tensor:
        """Multiply by ``torch._weight_int8pack_mm``."""
        return torch._weight_int8pack_mm(values, self.packed, self.scales)


class TorchInt4(_Kept):
    """Four bits a weight in PyTorch's tiles, with scales and zeros ``(groups, outputs, 2)``."""

    def call_kernel(self, values: torch.Tensor) -> torch.Tensor:
        """Multiply by ``torch._weight_int4pack_mm``."""
        group = self.packed.shape[1] * INNER_K_TILES * 16 // self.scales.shape[0]
        return torch._weight_int4pack_mm(values, self.packed, group, self.scales)


def as_torch_keeps(weight: Int8 | Int4) -> TorchInt8 | TorchInt4:
    """Return the very numbers of a quantised matrix as PyTorch's kernels take them, in bf16 with whole groups only."""
    if isinstance(weight, Int8):
        return TorchInt8.pack(weight.weight, weight.scales[:, 0].bfloat16())
    values = unpack(weight.weight)
    pairs = values[:, ::2] << 4 | values[:, 1::2]
    scales = weight.scales.t().bfloat16()
    zeros = torch.zeros_like(scales)  # what 8 stands for; theirs is (q - 8) * scale + zero
    tiles = torch._convert_weight_to_int4pack(pairs.contiguous(), INNER_K_TILES)
    return TorchInt4.pack(tiles, torch.stack([scales, zeros], dim=-1).contiguous())


def with_torch_kernels(decoder: Decoder) -> Decoder:
    """Return a decoder whose quantised matrices are multiplied by PyTorch's kernels."""
    return dataclasses.replace(decoder, layers=[_convert(layer) for layer in decoder.layers])


def _convert(layer: Layer) -> Layer:
    def linear(given: Linear) -> Linear:
        weight = given.weight
        return given if isinstance(weight, torch.Tensor) else Linear(as_torch_keeps(weight), given.bias)

    return dataclasses.replace(
        layer,
        query_key_value=linear(layer.query_key_value),
        out=linear(layer.out),
        up=linear(layer.up),
        down=linear(layer.down),
    )
