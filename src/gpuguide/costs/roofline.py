"""The roofline: how fast an operation can be at most, from its arithmetic, its bytes and two ceilings.

Source: S. Williams, A. Waterman, D. Patterson, "Roofline: An Insightful Visual Performance Model for Multicore
Architectures", Communications of the ACM 52(4), 2009.
"""

from __future__ import annotations


def matmul_flops(rows: int, inner: int, columns: int) -> int:
    """Return the floating-point operations of a ``(rows, inner) @ (inner, columns)`` product.

    Each of the ``rows * columns`` results takes ``inner`` multiplications and ``inner`` additions.
    """
    return 2 * rows * inner * columns


def matmul_bytes(rows: int, inner: int, columns: int, element_size: float) -> float:
    """Return the fewest bytes a product must move: both operands read once, the result written once.

    Parameters
    ----------
    rows, inner, columns : int
        As in :func:`matmul_flops`.
    element_size : float
        Bytes an element, the same for all three matrices.
    """
    return (rows * inner + inner * columns + rows * columns) * element_size


def copy_bytes(size: int) -> int:
    """Return the bytes that a copy of ``size`` bytes moves: each is read once and written once."""
    return 2 * size


def arithmetic_intensity(flops: float, moved: float) -> float:
    """Return the floating-point operations done for each byte moved, in FLOP/B."""
    return flops / moved


def ridge(peak: float, bandwidth: float) -> float:
    """Return the arithmetic intensity in FLOP/B from which on arithmetic, and not memory, is the limit.

    Parameters
    ----------
    peak : float
        FLOP/s
    bandwidth : float
        B/s
    """
    return peak / bandwidth


def attainable(intensity: float, peak: float, bandwidth: float) -> float:
    """Return the highest rate in FLOP/s that an operation of this intensity can reach."""
    return min(peak, intensity * bandwidth)


def time_floor(flops: float, moved: float, peak: float, bandwidth: float) -> float:
    """Return the shortest time in seconds: arithmetic and data movement at their ceilings, fully overlapped."""
    return max(flops / peak, moved / bandwidth)


def transfer_time(size: float, bandwidth: float, latency: float = 0.0) -> float:
    """Return the time in seconds to move ``size`` bytes over a link: a fixed latency and then its bandwidth."""
    return latency + size / bandwidth


def offloaded_matmul_time(size: int, peak: float, link: float, latency: float, element_size: int = 4) -> float:
    """Return the time of a square product on a GPU when its data start and end in host memory.

    Parameters
    ----------
    size : int
        Rows and columns of both operands.
    peak : float
        The GPU's rate for this product, FLOP/s.
    link : float
        Bandwidth between host and GPU, B/s, taken as the same both ways.
    latency : float
        Seconds that each of the three transfers costs before its first byte.
    element_size : int
        Bytes an element.

    Returns
    -------
    float
        Seconds for two operands in, the product, and one result out, one after the other.
    """
    matrix = size * size * element_size
    return 3 * transfer_time(matrix, link, latency) + matmul_flops(size, size, size) / peak
