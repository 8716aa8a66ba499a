"""Sizes of an attention problem, with the rows, pairs of a query and a key, and bytes that follow from them."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class AttentionProblem:
    """Sizes of an attention problem."""

    batch: int
    heads: int
    queries: int
    head_dim: int
    keys: int
    kv_heads: int
    causal: bool = False
    element_size: int = 2
    """Bytes a number of inputs and output"""

    @property
    def rows(self) -> int:
        """Queries of all heads and sequences."""
        return self.batch * self.heads * self.queries

    @property
    def scores(self) -> int:
        """Numbers of the matrices of scores, of all heads and sequences, the hidden ones among them."""
        return self.rows * self.keys

    @property
    def pairs(self) -> int:
        """Pairs of a query and a key that it sees, of all heads and sequences."""
        return self.batch * self.heads * pairs(self.queries, self.keys, self.causal)

    @property
    def query_bytes(self) -> int:
        """Bytes of the queries, and of the output."""
        return self.rows * self.head_dim * self.element_size

    @property
    def key_bytes(self) -> int:
        """Bytes of the keys, and of the values."""
        return self.batch * self.kv_heads * self.keys * self.head_dim * self.element_size

    @property
    def statistic_bytes(self) -> int:
        """Bytes of one number a query, such as the log-sum-exp, in fp32 or wider."""
        return self.rows * self.statistic_size

    @property
    def statistic_size(self) -> int:
        """Bytes a number that is computed with on the chip."""
        return max(4, self.element_size)


def problem(
    batch: int,
    heads: int,
    seq_len: int,
    head_dim: int,
    *,
    keys: int | None = None,
    kv_heads: int | None = None,
    causal: bool = False,
    element_size: int = 2,
) -> AttentionProblem:
    """Return the sizes of an attention.

    Parameters
    ----------
    batch, heads, seq_len, head_dim : int
        Sizes of the queries.
    keys, kv_heads : int, optional
        Sizes of keys and values; by default those of the queries.
    causal : bool
        Whether a query sees no key after its own position; the last query has the position of the last key.
    element_size : int
        Bytes a number of inputs and output.

    Raises
    ------
    ValueError
        If a size is below 1, or the heads are no multiple of ``kv_heads``.
    """
    result = AttentionProblem(
        batch,
        heads,
        seq_len,
        head_dim,
        seq_len if keys is None else keys,
        heads if kv_heads is None else kv_heads,
        causal,
        element_size,
    )
    for name, size in vars(result).items():
        if name != "causal" and size < 1:
            raise ValueError(f"{'seq_len' if name == 'queries' else name} is {size}; it must be at least 1.")
    if result.heads % result.kv_heads:
        raise ValueError(f"There are {result.heads} heads, which is no multiple of the {result.kv_heads} kv_heads.")
    return result


def problem_from_tensors(q: torch.Tensor, k: torch.Tensor, *, causal: bool = False) -> AttentionProblem:
    """Return the sizes of the attention of two tensors, ``(batch, heads, length, head_dim)``."""
    batch, heads, queries, head_dim = q.shape
    sizes = {"keys": k.shape[2], "kv_heads": k.shape[1], "element_size": q.element_size()}
    return problem(batch, heads, queries, head_dim, causal=causal, **sizes)


def pairs(queries: int, keys: int, causal: bool = False) -> int:
    """Return the number of pairs of a query and a key that it sees, in one head."""
    if not causal:
        return queries * keys
    seeing = min(queries, keys)  # the queries before these see nothing
    return seeing * (keys - seeing) + seeing * (seeing + 1) // 2
