"""A decode step in few kernels, with all buffers allocated beforehand, so that a CUDA graph can capture it.

For one token a layer is five kernels (:mod:`~gpuguide.inference.fused.vector`): norm with queries, keys and values;
attention; output projection; norm with the first matrix of the feed-forward part; the second. For several tokens the
norms are kernels of their own (:mod:`~gpuguide.inference.fused.matrix`), which makes seven. Several tokens of a small
model also use the kernels for one token, in parallel: each reads the weights from the L2 cache.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import triton

from gpuguide.inference.cache import PAGE, Cache
from gpuguide.inference.decoder import Decoder, Layer, Norm
from gpuguide.inference.fused import matrix as matrix_kernels
from gpuguide.inference.fused import vector
from gpuguide.inference.fused.attention import CacheAttention, overlaps
from gpuguide.inference.fused.tiling import (
    LONGEST_PART,
    Matrix,
    MatrixTiling,
    matrix_tiling,
    unpacks_exactly,
    vector_constants,
    vector_tiling,
)

LARGEST_OVERLAPPED = 2**26
"""Bytes of a layer's weights up to which launching kernels while their predecessors run (PDL) is faster. In a large
layer every kernel fills the GPU by itself, and programs that wait take the place of programs that read."""
LARGEST_GEMV = 2**25
"""Bytes of a layer's weights, counted once for each token, up to which several tokens use the GEMV kernels. Reading
weights from the L2 cache again takes less time than the two more kernels a layer of the GEMM path."""
LOWEST = -(2**63)
"""Lower than every :func:`~gpuguide.inference.fused.parts.argmax_key`"""


class DecodeStep:
    """One decode step: from the next tokens of some rows to the logits after them.

    Parameters
    ----------
    decoder : Decoder
        Model that :meth:`suits the kernels <gpuguide.inference.decoder.Decoder.suits_kernels>`.
    cache : Cache
        KV cache of the model.
    rows : torch.Tensor
        ``(count,)``, int64: cache row of each token. A row may occur several times, with its tokens in order: each
        attends to the keys of those before it.
    """

    def __init__(self, decoder: Decoder, cache: Cache, rows: torch.Tensor) -> None:
        if decoder.shape.head_dim & (decoder.shape.head_dim - 1):
            raise ValueError(f"The kernels take heads of a power of two; these have {decoder.shape.head_dim} numbers.")
        self.decoder, self.cache, self.rows = decoder, cache, rows
        self.count = count = len(rows)
        shape, device = decoder.shape, decoder.device
        self.processors = torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4
        self.layers = [_Matrices.from_layer(layer) for layer in decoder.layers]
        self.overlap = overlaps(device) and self.layers[0].nbytes() <= LARGEST_OVERLAPPED
        self.uses_gemv = count == 1 or count * self.layers[0].nbytes() <= LARGEST_GEMV
        self.head = Matrix.from_linear(decoder.head)
        self.element_size = decoder.dtype.itemsize

        def buffer(*size: int, dtype: torch.dtype = decoder.dtype) -> torch.Tensor:
            return torch.empty(count, *size, dtype=dtype, device=device)

        self.hidden = buffer(shape.hidden, dtype=torch.float32)
        self.normed = buffer(shape.hidden)
        self.queries = buffer(shape.heads, shape.head_dim)
        self.attention_out = buffer(shape.heads, shape.head_dim)
        self.inner = buffer(shape.intermediate)
        self.logits = buffer(shape.vocab, dtype=torch.float32)
        self.best = torch.full((count,), LOWEST, dtype=torch.int64, device=device)
        """Argmax key of each row so far; :func:`advance` resets it"""
        self.attention = CacheAttention(
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
        """Split-K parts of a matmul, to be added up"""
        self.counters = torch.zeros(count * shape.hidden, dtype=torch.int32, device=device)
        """Parts that have finished, for each token and row block; zero between kernels"""

    def __call__(self, tokens: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Compute the logits after one token of each row.

        Parameters
        ----------
        tokens : torch.Tensor
            ``(count,)``, int64
        lengths : torch.Tensor
            ``(count,)``, int64: tokens in the cache before each, which is its position.

        Returns
        -------
        torch.Tensor
            ``(count, vocab_size)``, in fp32: the same buffer every time.
        """
        self._embed(tokens, lengths)
        return self.run_layers(lengths)

    def run_layers(self, lengths: torch.Tensor) -> torch.Tensor:
        """Compute the logits from embeddings that the caller has stored in :attr:`hidden`."""
        if self.uses_gemv:
            self._run_gemv(lengths)
        else:
            self._run_gemm(lengths)
        return self.logits

    def _embed(self, tokens: torch.Tensor, lengths: torch.Tensor) -> None:
        width, block = self.decoder.shape.hidden, 1024
        positions = self.decoder.position_embedding
        self._launch(
            vector.embed_kernel,
            (self.count, triton.cdiv(width, block)),
            4,
            tokens=tokens,
            positions=lengths,
            embedding=self.decoder.token_embedding,
            position_embedding=tokens if positions is None else positions,
            hidden=self.hidden,
            WIDTH=width,
            BLOCK=block,
            POSITIONS=positions is not None,
        )

    # --- GEMV: each token by itself ------------------------------------------------------------------------

    def _run_gemv(self, positions: torch.Tensor) -> None:
        activation = {"inner": self.inner, "GATED": self.decoder.shape.gated}
        for number, (layer, matrices) in enumerate(zip(self.decoder.layers, self.layers, strict=True)):
            heads = {**self._cache_arguments(number, positions), **self._head_sizes()}
            self._norm_and_gemv(vector.project_kernel, layer.attention_norm, matrices.query_key_value, heads)
            self._attend(number, positions)
            self._gemv_and_add(matrices.out, self.attention_out)
            self._norm_and_gemv(vector.activate_kernel, layer.feed_forward_norm, matrices.up, activation)
            self._gemv_and_add(matrices.down, self.inner)
        norm, head = self.decoder.final_norm, self.head
        tiling = vector_tiling(head, self.processors, can_cut=False)
        self._launch(
            vector.head_kernel,
            (tiling.programs, self.count),
            tiling.warps,
            hidden=self.hidden,
            **_norm_arguments(norm),
            weight=head.weight,
            inputs=head.inputs,
            outputs=head.outputs,
            logits=self.logits,
            best=self.best,
            INPUTS=tiling.padded,
            ROWS=tiling.rows,
        )

    def _norm_and_gemv(self, kernel: Any, norm: Norm, matrix: Matrix, others: Mapping[str, Any]) -> None:
        tiling = vector_tiling(matrix, self.processors, can_cut=False)
        self._launch(
            kernel,
            (tiling.programs, self.count),
            tiling.warps,
            hidden=self.hidden,
            **_norm_arguments(norm),
            **matrix.arguments(),
            **others,
            **vector_constants(matrix, tiling, self.attention_out),
        )

    def _gemv_and_add(self, matrix: Matrix, x: torch.Tensor) -> None:
        tiling = vector_tiling(matrix, self.processors, can_cut=True)
        self._launch(
            vector.add_kernel,
            (tiling.programs, self.count, tiling.parts),
            tiling.warps,
            x=x,
            **matrix.arguments(),
            hidden=self.hidden,
            partial=self.partial,
            counters=self.counters,
            length=tiling.length,
            SPLIT_K=tiling.parts,
            ROUNDS_PAD=triton.next_power_of_2(tiling.rounds),
            **vector_constants(matrix, tiling, x),
        )

    # --- GEMM: all tokens together --------------------------------------------------------------------------

    def _run_gemm(self, positions: torch.Tensor) -> None:
        activation = {"inner": self.inner, "GATED": self.decoder.shape.gated}
        before: Matrix | None = None
        parts = 0
        for number, (layer, matrices) in enumerate(zip(self.decoder.layers, self.layers, strict=True)):
            self._add_and_norm(before, parts, layer.attention_norm)
            heads = {**self._cache_arguments(number, positions), **self._head_sizes()}
            self._gemm(matrix_kernels.project_matrix_kernel, matrices.query_key_value, heads)
            self._attend(number, positions)
            self._split_k(matrices.out, self.out_tiling, self.attention_out)
            self._add_and_norm(matrices.out, self.out_tiling.parts, layer.feed_forward_norm)
            self._gemm(matrix_kernels.activate_matrix_kernel, matrices.up, activation)
            self._split_k(matrices.down, self.down_tiling, self.inner)
            before, parts = matrices.down, self.down_tiling.parts
        self._add_and_norm(before, parts, self.decoder.final_norm)
        tiling, head = self._tiling(self.head, can_split=False), self.head
        self._launch(
            matrix_kernels.head_matrix_kernel,
            self._grid(head, tiling),
            tiling.warps,
            x=self.normed,
            weight=head.weight,
            count=self.count,
            inputs=head.inputs,
            outputs=head.outputs,
            logits=self.logits,
            best=self.best,
            **_tile_constants(tiling),
        )

    def _gemm(self, kernel: Any, matrix: Matrix, others: Mapping[str, Any]) -> None:
        tiling = self._tiling(matrix, can_split=False)
        self._launch(
            kernel,
            self._grid(matrix, tiling),
            tiling.warps,
            x=self.normed,
            **matrix.arguments(),
            count=self.count,
            **others,
            BIAS=matrix.has_bias,
            BITS=matrix.bits,
            EXACT=unpacks_exactly(self.normed),
            **_tile_constants(tiling),
        )

    def _split_k(self, matrix: Matrix, tiling: MatrixTiling, x: torch.Tensor) -> None:
        self._launch(
            matrix_kernels.split_k_kernel,
            (*self._grid(matrix, tiling), tiling.parts),
            tiling.warps,
            x=x,
            **matrix.arguments(),
            count=self.count,
            partial=self.partial,
            blocks=triton.cdiv(triton.cdiv(matrix.inputs, tiling.block), tiling.parts),
            BITS=matrix.bits,
            EXACT=unpacks_exactly(x),
            **_tile_constants(tiling),
        )

    def _add_and_norm(self, before: Matrix | None, parts: int, norm: Norm) -> None:
        width = self.decoder.shape.hidden
        has_bias = before is not None and before.has_bias
        self._launch(
            matrix_kernels.add_and_norm_kernel,
            (self.count,),
            4 if width <= 2048 else 8,
            hidden=self.hidden,
            partial=self.partial,
            bias=before.bias if before is not None and has_bias else self.hidden,
            **_norm_arguments(norm),
            normed=self.normed,
            count=self.count,
            width=width,
            PARTS=parts,
            BIAS=has_bias,
            BLOCK=triton.next_power_of_2(width),
        )

    def _tiling(self, matrix: Matrix, *, can_split: bool) -> MatrixTiling:
        size = self.element_size
        return matrix_tiling(matrix, self.count, self.processors, element_size=size, can_split=can_split)

    def _grid(self, matrix: Matrix, tiling: MatrixTiling) -> tuple[int, int]:
        return triton.cdiv(matrix.outputs, tiling.rows), triton.cdiv(self.count, tiling.tokens)

    # --- both ------------------------------------------------------------------------------------------------

    def _attend(self, number: int, positions: torch.Tensor) -> None:
        cache = self.cache
        keys, values = cache.keys[number], cache.values[number]
        self.attention(self.queries, keys, values, cache.table, self.rows, positions, self.attention_out)

    def _cache_arguments(self, number: int, positions: torch.Tensor) -> dict[str, Any]:
        cache, rope = self.cache, self.decoder.rotations
        return {
            "queries": self.queries,
            "keys": cache.keys[number],
            "values": cache.values[number],
            "table": cache.table,
            "table_width": cache.table.shape[1],
            "cache_rows": self.rows,
            "positions": positions,
            "rope": self.hidden if rope is None else rope,
        }

    def _head_sizes(self) -> dict[str, Any]:
        shape = self.decoder.shape
        return {
            "QUERIES": shape.heads * shape.head_dim,
            "KV_HEADS": shape.kv_heads,
            "HEAD_DIM": shape.head_dim,
            "PAGE": PAGE,
            "ROPE": self.decoder.rotations is not None,
        }

    def _launch(self, kernel: Any, grid: tuple[int, ...], warps: int, **arguments: Any) -> None:
        pdl = {"launch_pdl": True} if self.overlap else {}
        kernel[grid](**arguments, PDL=self.overlap, num_warps=warps, **pdl)


@dataclass(frozen=True)
class _Matrices:
    """The four matrices of a layer."""

    query_key_value: Matrix
    out: Matrix
    up: Matrix
    down: Matrix

    def nbytes(self) -> int:
        """Return the size of the weights in bytes."""
        return sum(matrix.weight.nbytes for matrix in (self.query_key_value, self.out, self.up, self.down))

    @classmethod
    def from_layer(cls, layer: Layer) -> _Matrices:
        return cls(*(Matrix.from_linear(linear) for linear in (layer.query_key_value, layer.out, layer.up, layer.down)))


def _norm_arguments(norm: Norm) -> dict[str, Any]:
    return {
        "norm_weight": norm.weight,
        "norm_bias": norm.weight if norm.bias is None else norm.bias,
        "epsilon": norm.epsilon,
        "LAYER_NORM": norm.bias is not None,
    }


def _tile_constants(tiling: MatrixTiling) -> dict[str, int]:
    return {"TOKENS": tiling.tokens, "ROWS": tiling.rows, "BLOCK": tiling.block, "STAGES": tiling.stages}


# --- the end of a step -----------------------------------------------------------------------------------


def advance(
    step: DecodeStep,
    drawn: torch.Tensor | None,
    tokens: torch.Tensor,
    lengths: torch.Tensor,
    writing: torch.Tensor,
    texts: torch.Tensor,
) -> None:
    """Finish a step: store the new tokens as the next input and in the texts, whose lengths grow by one.

    Parameters
    ----------
    step : DecodeStep
        Step that has been run.
    drawn : torch.Tensor or None
        ``(count,)``, int64: the new tokens; ``None`` for the most likely ones, which the step knows.
    tokens, lengths, writing, texts
        State of :class:`gpuguide.inference.Engine` for the step's rows; written.
    """
    pdl = {"launch_pdl": True} if step.overlap and drawn is None else {}
    vector.advance_kernel[(step.count,)](
        best=step.best,
        drawn=step.best if drawn is None else drawn,
        tokens=tokens,
        lengths=lengths,
        writing=writing,
        texts=texts,
        text_width=texts.shape[1],
        GREEDY=drawn is None,
        LOWEST=LOWEST,
        PDL=bool(pdl),
        num_warps=1,
        **pdl,
    )
