"""Bytes that attention moves, and saves for its backward pass, if the scores are stored in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpuguide.attention.cost.sizes import AttentionProblem


@dataclass(frozen=True)
class NaiveOperation:
    """One operation of the naive form: it reads its operands from memory and writes its result there."""

    name: str
    score_reads: int
    """Number of times that the matrix of scores, or one of its shape, is read"""
    score_writes: int
    read: int
    """Bytes read in all"""
    written: int
    flops: int = 0
    """Operations of a matmul; zero for the others"""


def naive_forward(p: AttentionProblem) -> list[NaiveOperation]:
    """Return what :func:`gpuguide.attention.reference.naive_attention` moves, operation by operation.

    Each matrix of scores and probabilities is as large as ``queries * keys`` a head, hidden pairs or not.
    """
    scores, product = p.scores * p.element_size, 2 * p.head_dim * p.scores
    mask = [NaiveOperation("mask", 1, 1, scores + p.queries * p.keys, scores)] if p.causal else []
    return [
        NaiveOperation("queries times keys", 0, 1, p.query_bytes + p.key_bytes, scores, product),
        NaiveOperation("scale", 1, 1, scores, scores),
        *mask,
        NaiveOperation("softmax", 1, 1, scores, scores),
        NaiveOperation("probabilities times values", 1, 0, scores + p.key_bytes, p.query_bytes, product),
    ]


def naive_backward(p: AttentionProblem) -> list[NaiveOperation]:
    """Return what the backward pass of the naive form moves, operation by operation."""
    scores, product = p.scores * p.element_size, 2 * p.head_dim * p.scores
    mask = [NaiveOperation("mask", 1, 1, scores + p.queries * p.keys, scores)] if p.causal else []
    return [
        NaiveOperation("gradient of the probabilities", 0, 1, p.query_bytes + p.key_bytes, scores, product),
        NaiveOperation("gradient of the values", 1, 0, scores + p.query_bytes, p.key_bytes, product),
        NaiveOperation("softmax", 2, 1, 2 * scores, scores),
        *mask,
        NaiveOperation("scale", 1, 1, scores, scores),
        NaiveOperation("gradient of the queries", 1, 0, scores + p.key_bytes, p.query_bytes, product),
        NaiveOperation("gradient of the keys", 1, 0, scores + p.query_bytes, p.key_bytes, product),
    ]


def score_passes(passes: Sequence[NaiveOperation]) -> int:
    """Return the number of times that a matrix of scores is read from memory or written to it."""
    return sum(step.score_reads + step.score_writes for step in passes)


def bytes_moved(passes: Sequence[NaiveOperation]) -> int:
    """Return the bytes that operations read and write together."""
    return sum(step.read + step.written for step in passes)


def naive_kept_bytes(p: AttentionProblem) -> int:
    """Return the bytes that the naive form saves for its backward pass in addition to its inputs: P and the mask."""
    return p.scores * p.element_size + (p.queries * p.keys if p.causal else 0)
