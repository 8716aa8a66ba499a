"""What the loss costs: arithmetic, bytes and memory, in the ordinary way and a chunk at a time."""

from __future__ import annotations

from gpuguide.costs import roofline


def linear_cross_entropy_flops(tokens: int, hidden: int, vocab: int) -> int:
    """Return the operations of head and loss, forward and backward: three products of the same size.

    Logits, gradient of the hidden states, gradient of the head. The loss itself is left out: it does a handful of
    operations for a logit, where the products do ``6 * hidden``.
    """
    return 3 * roofline.matmul_flops(tokens, hidden, vocab)


def loss_pass_bytes(tokens: int, vocab: int, element_size: float) -> float:
    """Return the fewest bytes that turn logits into gradients: each logit is read once and overwritten once."""
    return 2 * tokens * vocab * element_size


def whole_extra_memory(tokens: int, vocab: int) -> int:
    """Return the bytes that the ordinary way takes at its highest, beside inputs and their gradients.

    That is in the backward pass: the log-probabilities that were kept for it, their gradient, and the gradient of the
    logits, all in fp32, whatever the format of the model.
    """
    return tokens * vocab * 3 * 4


def chunked_extra_memory(chunk: int, vocab: int, element_size: int) -> int:
    """Return the bytes that a chunk at a time takes beside inputs and their gradients: the logits of one chunk."""
    return chunk * vocab * element_size


def chunked_time_floor(
    tokens: int, hidden: int, vocab: int, element_size: float, peak: float, bandwidth: float
) -> float:
    """Return the shortest time in seconds of head and loss, forward and backward, when the loss is a pass of its own.

    The products run at the peak and the loss at the bandwidth, one after the other, since the loss needs whole rows.

    Parameters
    ----------
    tokens, hidden, vocab : int
        Sizes.
    element_size : float
        Bytes an element of the logits.
    peak, bandwidth : float
        FLOP/s and B/s.
    """
    flops = linear_cross_entropy_flops(tokens, hidden, vocab)
    return flops / peak + loss_pass_bytes(tokens, vocab, element_size) / bandwidth
