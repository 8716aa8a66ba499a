"""Cost model: the fewest operations and bytes of a softmax and of the language-model head."""

from __future__ import annotations

import math

from gpuguide.costs import roofline


def softmax_bytes(rows: int, vocab: int, element_size: float) -> float:
    """Return the fewest bytes a softmax must move: each logit read once, each probability written once."""
    return 2 * rows * vocab * element_size


def log_sum_exp_bytes(rows: int, vocab: int, element_size: float) -> float:
    """Return the fewest bytes that a log-sum-exp must move: one read of each logit, and one write of a number a row."""
    return rows * (vocab * element_size + 4)


def logits_bytes(tokens: int, vocab: int, element_size: float) -> float:
    """Return the bytes that the logits of ``tokens`` positions take."""
    return tokens * vocab * element_size


def head_flops(tokens: int, hidden: int, vocab: int) -> int:
    """Return the floating-point operations of the language-model head on ``tokens`` positions."""
    return roofline.matmul_flops(tokens, hidden, vocab)


def head_bytes(tokens: int, hidden: int, vocab: int, element_size: float) -> float:
    """Return the fewest bytes the head must move: hidden states and weight read once, logits written once.

    Parameters
    ----------
    tokens : int
        Positions that get logits: one a sequence when text is generated, all of them in training.
    hidden, vocab : int
        Sizes of the weight, ``(vocab, hidden)``.
    element_size : float
        Bytes an element, the same for all three.
    """
    return roofline.matmul_bytes(tokens, hidden, vocab, element_size)


def head_intensity(tokens: int, hidden: int, vocab: int, element_size: float) -> float:
    """Return the arithmetic intensity of the head in FLOP/B.

    For few tokens it is ``2 * tokens / element_size``: the weight is read for each of them together. It grows towards
    ``2 / element_size * hidden * vocab / (hidden + vocab)``, because logits and hidden states must move too.
    """
    flops = head_flops(tokens, hidden, vocab)
    return roofline.arithmetic_intensity(flops, head_bytes(tokens, hidden, vocab, element_size))


def head_turning_point(hidden: int, vocab: int, element_size: float, ridge: float) -> float:
    """Return the number of tokens at which the head turns from memory-bound to compute-bound.

    Parameters
    ----------
    hidden, vocab : int
        Sizes of the weight.
    element_size : float
        Bytes an element.
    ridge : float
        The machine's, in FLOP/B (:func:`gpuguide.costs.roofline.ridge`).

    Returns
    -------
    float
        Not rounded; infinite if logits and hidden states alone keep the intensity below the ridge.
    """
    most = 2 / element_size * hidden * vocab / (hidden + vocab)
    if most <= ridge:
        return math.inf
    return ridge * element_size / 2 / (1 - ridge / most)
