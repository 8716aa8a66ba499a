"""A decode step in few kernels, all its memory reserved beforehand, so that a CUDA graph can hold it.

For one token a layer is five kernels (:mod:`~gpuguide.inference.fused.vector`): norm with queries, keys and values;
attention; its second product; norm with the first product of the feed-forward part; the second. For several tokens the
norms are kernels of their own (:mod:`~gpuguide.inference.fused.matrix`), which makes seven. Where the weights are few,
though, several tokens too go through the kernels for one, side by side: each reads the weights, from the L2 cache.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import triton

from gpuguide.inference.cache import PAGE, Cache
from gpuguide.inference.decoder import Decoder, Layer, Norm
from gpuguide.inference.fused import matrix, vector
from gpuguide.inference.fused.attention import Attention, overlaps
from gpuguide.inference.fused.tiling import (
    LONGEST_PART,
    Matrix,
    MatrixTiling,
    matrix_tiling,
    vector_constants,
    vector_tiling,
)

LARGEST_OVERLAPPED = 2**26
"""Bytes of a layer's weights up to which it pays to launch its kernels while their predecessors run. Of a large layer
every kernel fills the GPU by itself, and programs that wait take the place of programs that read."""
LARGEST_SIDE_BY_SIDE = 2**25
"""Bytes of a layer's weights, read anew for each token, up to which several tokens use the kernels for one. To read
them from the L2 cache takes less time than the two kernels a layer that this saves."""
LOWEST = -(2**63)
"""Below every logit, as :func:`gpuguide.inference.fused.parts.order_of` orders them"""


class Step:
    """One step: the next tokens of some rows go in, the logits after them come out.

    Parameters
    ----------
    decoder : Decoder
        One that :meth:`suits the kernels <gpuguide.inference.decoder.Decoder.suits_kernels>`.
    cache : Cache
        For it.
    rows : torch.Tensor
        ``(count,)``, int64: whose tokens they are. A row may occur several times, with its tokens in order: each sees
        the keys of those before it.
    """

    def __init__(self, decoder: Decoder, cache: Cache, rows: torch.Tensor) -> None:
        if decoder.shape.head_dim & (decoder.shape.head_dim - 1):
            raise ValueError(f"The kernels take heads of a power of two; these have {decoder.shape.head_dim} numbers.")
        self.decoder, self.cache, self.rows = decoder, cache, rows
        self.count = count = len(rows)
        shape, device = decoder.shape, decoder.device
        self.processors = torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4
        self.layers = [_Matrices.of(layer) for layer in decoder.layers]
        self.overlap = overlaps(device) and self.layers[0].nbytes() <= LARGEST_OVERLAPPED
        self.side_by_side = count == 1 or count * self.layers[0].nbytes() <= LARGEST_SIDE_BY_SIDE
        self.head = Matrix.of(decoder.head)

        def room(*size: int, dtype: torch.dtype = decoder.dtype) -> torch.Tensor:
            return torch.empty(count, *size, dtype=dtype, device=device)

        self.hidden = room(shape.hidden, dtype=torch.float32)
        self.normed = room(shape.hidden)
        self.queries = room(shape.heads, shape.head_dim)
        self.mixed = room(shape.heads, shape.head_dim)
        self.inner = room(shape.intermediate)
        self.logits = room(shape.vocab, dtype=torch.float32)
        self.best = torch.full((count,), LOWEST, dtype=torch.int64, device=device)
        """The order of the best logit of each row so far, and which token it is; :func:`advance` puts it back"""
        self.attention = Attention(
            count, shape.heads, shape.kv_heads, shape.head_dim, cache.capacity, cache.keys, overlap=self.overlap
        )
        self.out_tiling = self._tiling(self.layers[0].out, can_split=True)
        self.down_tiling = self._tiling(self.layers[0].down, can_split=True)
        parts = max(
            self.out_tiling.parts,
            self.down_tiling.parts,
            triton.cdiv(max(shape.intermediate, shape.hidden), LONGEST_PART) + 1,
        )
        self.partial = torch.empty(parts, count, shape.hidden, dtype=torch.float32, device=device)
        """Sums over parts of the inputs of a product, to be added up"""
        self.arrived = torch.zeros(count * shape.hidden, dtype=torch.int32, device=device)
        """How many programs have finished with their part, for each token and group of rows; zero between kernels"""

    def __call__(self, tokens: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Push one token of each row through the model.

        Parameters
        ----------
        tokens : torch.Tensor
            ``(count,)``, int64
        lengths : torch.Tensor
            ``(count,)``, int64: how many tokens are before each, and so its position.

        Returns
        -------
        torch.Tensor
            ``(count, vocab_size)``, in fp32: the same memory every time.
        """
        self._embed(tokens, lengths)
        return self.of_hidden(lengths)

    def of_hidden(self, lengths: torch.Tensor) -> torch.Tensor:
        """Do the same for tokens whose vectors somebody else has put into :attr:`hidden`."""
        if self.side_by_side:
            self._side_by_side(lengths)
        else:
            self._together(lengths)
        return self.logits

    def _embed(self, tokens: torch.Tensor, lengths: torch.Tensor) -> None:
        width, block = self.decoder.shape.hidden, 1024
        positions = self.decoder.position_embedding
        self._launch(
            vector.embed_kernel, (self.count, triton.cdiv(width, block)), 4,
            tokens, lengths, self.decoder.token_embedding, tokens if positions is None else positions, self.hidden,
            WIDTH=width, BLOCK=block, POSITIONS=positions is not None,
        )  # fmt: skip

    # --- each token by itself ------------------------------------------------------------------------------

    def _side_by_side(self, positions: torch.Tensor) -> None:
        shape, kernels = self.decoder.shape, vector
        for number, (layer, of) in enumerate(zip(self.decoder.layers, self.layers, strict=True)):
            into_cache = self._cache_arguments(number, positions)
            self._normed(kernels.project_kernel, layer.attention_norm, of.query_key_value, into_cache,
                         **self._head_sizes())  # fmt: skip
            self._attend(number, positions)
            self._add(of.out, self.mixed)
            self._normed(kernels.activate_kernel, layer.feed_forward_norm, of.up, (self.inner,), GATED=shape.gated)
            self._add(of.down, self.inner)
        norm, head = self.decoder.final_norm, self.head
        tiling = vector_tiling(head, self.processors, can_cut=False)
        self._launch(
            kernels.head_kernel, (tiling.programs, self.count), tiling.warps, self.hidden, *_norm(norm), head.weight,
            head.inputs, head.outputs, self.logits, self.best, LAYER_NORM=norm.bias is not None, INPUTS=tiling.padded,
            ROWS=tiling.rows,
        )  # fmt: skip

    def _normed(self, kernel: Any, norm: Norm, of: Matrix, into: tuple[Any, ...], **constants: Any) -> None:
        tiling = vector_tiling(of, self.processors, can_cut=False)
        self._launch(
            kernel, (tiling.programs, self.count), tiling.warps, self.hidden, *_norm(norm), *of.arguments(), *into,
            LAYER_NORM=norm.bias is not None, **vector_constants(of, tiling, self.mixed), **constants,
        )  # fmt: skip

    def _add(self, of: Matrix, x: torch.Tensor) -> None:
        tiling = vector_tiling(of, self.processors, can_cut=True)
        self._launch(
            vector.add_kernel, (tiling.programs, self.count, tiling.parts), tiling.warps, x, *of.arguments(),
            self.hidden, self.partial, self.arrived, tiling.length, PARTS=tiling.parts,
            ROUNDS_PAD=triton.next_power_of_2(tiling.rounds), **vector_constants(of, tiling, x),
        )  # fmt: skip

    # --- all tokens together --------------------------------------------------------------------------------

    def _together(self, positions: torch.Tensor) -> None:
        shape, kernels = self.decoder.shape, matrix
        before: Matrix | None = None
        parts = 0
        for number, (layer, of) in enumerate(zip(self.decoder.layers, self.layers, strict=True)):
            self._add_and_norm(before, parts, layer.attention_norm)
            into_cache = self._cache_arguments(number, positions)
            self._matrix(kernels.project_matrix_kernel, of.query_key_value, into_cache, **self._head_sizes())
            self._attend(number, positions)
            self._part(of.out, self.out_tiling, self.mixed)
            self._add_and_norm(of.out, self.out_tiling.parts, layer.feed_forward_norm)
            self._matrix(kernels.activate_matrix_kernel, of.up, (self.inner,), GATED=shape.gated)
            self._part(of.down, self.down_tiling, self.inner)
            before, parts = of.down, self.down_tiling.parts
        self._add_and_norm(before, parts, self.decoder.final_norm)
        tiling, head = self._tiling(self.head, can_split=False), self.head
        self._launch(
            kernels.head_matrix_kernel, self._grid(head, tiling), tiling.warps, self.normed, head.weight, self.count,
            head.inputs, head.outputs, self.logits, self.best, TOKENS=tiling.tokens, ROWS=tiling.rows,
            BLOCK=tiling.block, STAGES=tiling.stages,
        )  # fmt: skip

    def _matrix(self, kernel: Any, of: Matrix, into: tuple[Any, ...], **constants: Any) -> None:
        tiling = self._tiling(of, can_split=False)
        self._launch(
            kernel, self._grid(of, tiling), tiling.warps, self.normed, *of.arguments(), self.count, *into,
            BIAS=of.has_bias, BITS=of.bits, TOKENS=tiling.tokens, ROWS=tiling.rows, BLOCK=tiling.block,
            STAGES=tiling.stages, **constants,
        )  # fmt: skip

    def _part(self, of: Matrix, tiling: MatrixTiling, x: torch.Tensor) -> None:
        blocks = triton.cdiv(of.inputs, tiling.block)
        length = triton.cdiv(blocks, tiling.parts) * tiling.block
        self._launch(
            matrix.part_kernel, (*self._grid(of, tiling), tiling.parts), tiling.warps, x, *of.arguments(),
            self.count, self.partial, length, BITS=of.bits, TOKENS=tiling.tokens, ROWS=tiling.rows, BLOCK=tiling.block,
            STAGES=tiling.stages,
        )  # fmt: skip

    def _add_and_norm(self, before: Matrix | None, parts: int, norm: Norm) -> None:
        width = self.decoder.shape.hidden
        has_bias = before is not None and before.has_bias
        self._launch(
            matrix.add_and_norm_kernel, (self.count,), 4 if width <= 2048 else 8, self.hidden, self.partial,
            before.bias if before is not None and has_bias else self.hidden, *_norm(norm), self.normed, self.count,
            width, PARTS=parts, BIAS=has_bias, LAYER_NORM=norm.bias is not None, BLOCK=triton.next_power_of_2(width),
        )  # fmt: skip

    def _tiling(self, of: Matrix, *, can_split: bool) -> MatrixTiling:
        return matrix_tiling(of, self.count, self.processors, can_split=can_split)

    def _grid(self, of: Matrix, tiling: MatrixTiling) -> tuple[int, int]:
        return triton.cdiv(of.outputs, tiling.rows), triton.cdiv(self.count, tiling.tokens)

    # --- both ------------------------------------------------------------------------------------------------

    def _attend(self, number: int, positions: torch.Tensor) -> None:
        cache = self.cache
        keys, values = cache.keys[number], cache.values[number]
        self.attention(self.queries, keys, values, cache.table, self.rows, positions, self.mixed)

    def _cache_arguments(self, number: int, positions: torch.Tensor) -> tuple[Any, ...]:
        cache = self.cache
        rotations = self.decoder.rotations
        return (self.queries, cache.keys[number], cache.values[number], cache.table, cache.table.shape[1], self.rows,
                positions, self.hidden if rotations is None else rotations)  # fmt: skip

    def _head_sizes(self) -> Mapping[str, Any]:
        shape = self.decoder.shape
        return {
            "QUERIES": shape.heads * shape.head_dim,
            "KV_HEADS": shape.kv_heads,
            "HEAD_DIM": shape.head_dim,
            "PAGE": PAGE,
            "ROTATE": self.decoder.rotations is not None,
        }

    def _launch(self, kernel: Any, grid: tuple[int, ...], warps: int, *arguments: Any, **constants: Any) -> None:
        pdl = {"launch_pdl": True} if self.overlap else {}
        kernel[grid](*arguments, **constants, OVERLAP=self.overlap, num_warps=warps, **pdl)


@dataclass(frozen=True)
class _Matrices:
    """The four matrices of a layer."""

    query_key_value: Matrix
    out: Matrix
    up: Matrix
    down: Matrix

    def nbytes(self) -> int:
        """Return their size in bytes."""
        return sum(of.weight.nbytes for of in (self.query_key_value, self.out, self.up, self.down))

    @classmethod
    def of(cls, layer: Layer) -> _Matrices:
        return cls(*(Matrix.of(linear) for linear in (layer.query_key_value, layer.out, layer.up, layer.down)))


def _norm(norm: Norm) -> tuple[Any, ...]:
    return norm.weight, norm.weight if norm.bias is None else norm.bias, norm.epsilon


# --- the end of a step -----------------------------------------------------------------------------------


def advance(step: Step, drawn: torch.Tensor | None, tokens: torch.Tensor, lengths: torch.Tensor, writing: torch.Tensor,
            texts: torch.Tensor) -> None:  # fmt: skip
    """Finish a step: the new tokens become the last ones, and every row that is writing is one token longer.

    Parameters
    ----------
    step : Step
        Which has been run.
    drawn : torch.Tensor or None
        ``(count,)``, int64: the new tokens; ``None`` for the most likely ones, which the step knows.
    tokens, lengths, writing, texts
        As :class:`gpuguide.inference.Engine` has them, of the step's rows; written.
    """
    count = step.count
    pdl = {"launch_pdl": True} if step.overlap and drawn is None else {}
    vector.advance_kernel[(count,)](
        step.best, step.best if drawn is None else drawn, tokens, lengths, writing, texts, texts.shape[1],
        GREEDY=drawn is None, LOWEST=LOWEST, OVERLAP=bool(pdl), num_warps=1, **pdl,
    )  # fmt: skip
