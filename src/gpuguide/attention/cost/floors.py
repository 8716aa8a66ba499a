"""The shortest times that attention can take: its products, its exponentials and its bytes, each at its ceiling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpuguide.attention.cost.naive import NaiveOperation
from gpuguide.attention.cost.operations import backward_flops, exponentials, forward_flops
from gpuguide.attention.cost.sizes import AttentionProblem
from gpuguide.attention.cost.tiles import compulsory_backward_bytes, compulsory_bytes
from gpuguide.costs import roofline

EXPONENTIALS_PER_CLOCK = 16
"""Exponentials that a multiprocessor of an H100 starts in one clock.

J. Shah et al., "FlashAttention-3", 2024, section 3.1, in a footnote that quotes the CUDA programming guide.
https://arxiv.org/abs/2407.08608
"""


@dataclass(frozen=True)
class Floor:
    """The shortest times that three parts of an attention can take. They can go on at once, so the longest counts."""

    products: float
    """Seconds"""
    exponentials: float
    memory: float

    @property
    def time(self) -> float:
        """Seconds at least."""
        return max(self.products, self.exponentials, self.memory)

    @property
    def bound(self) -> str:
        """Name of the longest: ``products``, ``exponentials`` or ``memory``."""
        return max(vars(self), key=lambda name: vars(self)[name])


def exponential_rate(sms: int, clock: float, per_clock: int = EXPONENTIALS_PER_CLOCK) -> float:
    """Return the exponentials a second that a GPU of ``sms`` multiprocessors can do at a clock in Hz."""
    return sms * clock * per_clock


def forward_floor(p: AttentionProblem, peak: float, bandwidth: float, exponential_rate: float) -> Floor:
    """Return the floors of the forward pass when nothing moves but inputs and results.

    Parameters
    ----------
    p : AttentionProblem
        The sizes.
    peak, bandwidth : float
        FLOP/s of products and B/s of memory.
    exponential_rate : float
        Exponentials a second, :func:`exponential_rate`.
    """
    return Floor(
        forward_flops(p) / peak,
        exponentials(p) / exponential_rate,
        compulsory_bytes(p) / bandwidth,
    )


def backward_floor(
    p: AttentionProblem, peak: float, bandwidth: float, exponential_rate: float, products: int = 5
) -> Floor:
    """Return the floors of the backward pass. Parameters as :func:`forward_floor` and :func:`backward_flops`."""
    return Floor(
        backward_flops(p, products) / peak,
        exponentials(p) / exponential_rate,
        compulsory_backward_bytes(p) / bandwidth,
    )


def naive_floor(passes: Sequence[NaiveOperation], peak: float, bandwidth: float) -> float:
    """Return the shortest time in seconds of the operations of a naive pass, one after the other.

    The softmax is taken to be limited by its bytes, as it is on GPUs with 16-bit scores. ``peak`` and ``bandwidth`` as
    in :func:`forward_floor`.
    """
    return sum(roofline.time_floor(p.flops, p.read + p.written, peak, bandwidth) for p in passes)


def balanced_head_dim(peak: float, exponential_rate: float) -> float:
    """Return the head size at which products and exponentials of the forward pass take the same time.

    A pair costs ``4 * head_dim`` operations and one exponential. Below this size exponentials take longer.
    """
    return peak / exponential_rate / 4
