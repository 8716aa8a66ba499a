"""Cost model of the loss: arithmetic, bytes and memory, for all logits at once and a chunk at a time."""

from __future__ import annotations

from gpuguide.costs import roofline


def linear_cross_entropy_flops(tokens: int, hidden: int, vocab: int) -> int:
    """Return the operations of head and loss, forward and backward: three matmuls of the same size.

    Logits, gradient of the hidden states, gradient of the head. The loss itself is not counted: it does a handful of
    operations for a logit, where the matmuls do ``6 * hidden``.
    """
    return 3 * roofline.matmul_flops(tokens, hidden, vocab)


def loss_pass_bytes(tokens: int, vocab: int, element_size: float) -> float:
    """Return the fewest bytes that turn logits into gradients: each logit is read once and overwritten once."""
    return 2 * tokens * vocab * element_size


def whole_extra_memory(tokens: int, vocab: int) -> int:
    """Return the peak memory in bytes of PyTorch's loss, in addition to inputs and their gradients.

    The peak is in the backward pass: the saved log-probabilities, their gradient, and the gradient of the logits, all
    in fp32, whatever the dtype of the model.
    """
    return tokens * vocab * 3 * 4


def chunked_extra_memory(chunk: int, vocab: int, element_size: int) -> int:
    """Return the memory in bytes in addition to inputs and their gradients: the logits of one chunk."""
    return chunk * vocab * element_size


def chunked_time_floor(
    tokens: int, hidden: int, vocab: int, element_size: float, peak: float, bandwidth: float
) -> float:
    """Return the shortest time in seconds of head and loss, forward and backward, when the loss is a pass of its own.

    The matmuls run at the peak and the loss at the bandwidth, one after the other, since the loss needs whole rows.

    Parameters
    ----------
    tokens, hidden, vocab : int
        Problem sizes.
    element_size : float
        Bytes per element of the logits.
    peak, bandwidth : float
        Peak rate in FLOP/s and bandwidth in B/s.
    """
    flops = linear_cross_entropy_flops(tokens, hidden, vocab)
    return flops / peak + loss_pass_bytes(tokens, vocab, element_size) / bandwidth
