"""Habits that make training slow, as programs have them, and what each is mended by.

They give what the fast way gives, so each can be taken for the other and timed.

* A batch out of Python lists: :func:`batch_of_lists`; by slices :func:`batch_of_slices`, as in nanoGPT
  :func:`batch_like_nanogpt`; by one index, :func:`gather`, which :class:`gpuguide.training.Windows` does.
* Attention that writes out all scores: :func:`written_out_attention`, mended by ``scaled_dot_product_attention``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
import torch

Gather = Callable[[np.ndarray, np.ndarray, int], torch.Tensor]
"""From tokens, the places where windows begin, and their length to the windows, ``(batch, length)``, int64"""


def batch_of_lists(tokens: np.ndarray, starts: np.ndarray, length: int) -> torch.Tensor:
    """Make every id a number of Python, and a tensor of the lists."""
    rows = []
    for start in starts.tolist():
        rows.append(tokens[start : start + length].tolist())
    return torch.tensor(rows)


def batch_of_slices(tokens: np.ndarray, starts: np.ndarray, length: int) -> torch.Tensor:
    """Stack slices, and widen all ids at once."""
    return torch.from_numpy(np.stack([tokens[start : start + length] for start in starts]).astype(np.int64))


def batch_like_nanogpt(tokens: np.ndarray, starts: np.ndarray, length: int) -> torch.Tensor:
    """Widen each slice to a tensor of its own, and stack these.

    Source: nanoGPT, ``get_batch`` of ``train.py``.
    """
    return torch.stack([torch.from_numpy(tokens[start : start + length].astype(np.int64)) for start in starts])


def view_windows(tokens: np.ndarray, starts: np.ndarray, length: int) -> torch.Tensor:
    """Index a view of all windows that there are."""
    return torch.from_numpy(np.lib.stride_tricks.sliding_window_view(tokens, length)[starts].astype(np.int64))


def gather(tokens: np.ndarray, starts: np.ndarray, length: int) -> torch.Tensor:
    """Index all ids of all windows at once."""
    return torch.from_numpy(tokens[starts[:, None] + np.arange(length)].astype(np.int64))


BATCHES: Mapping[str, Gather] = {
    "lists": batch_of_lists,
    "slices": batch_of_slices,
    "nanogpt": batch_like_nanogpt,
    "view": view_windows,
    "gather": gather,
}
"""Ways to make a batch, all of which give the same"""


def written_out_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Return causal attention as textbooks write it: the scores of all pairs go to memory, several times.

    Parameters
    ----------
    query, key, value : torch.Tensor
        ``(batch, heads, seq, head_dim)``
    """
    seq = query.shape[-2]
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    future = torch.ones(seq, seq, dtype=torch.bool, device=query.device).triu(1)
    return scores.masked_fill(future, -math.inf).softmax(-1) @ value
