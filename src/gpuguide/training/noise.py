"""Chance in training: how noisy a gradient is by batch size, and how far runs lie apart that differ in the seed alone.

The *gradient noise scale* is the batch size at which the noise of a gradient is as large as the gradient: well below it
a batch twice as large saves almost half of the steps, well above it almost none. It is estimated from the gradients of
single sequences, and holds for the weights at which they are taken.

References
----------
S. McCandlish et al., "An Empirical Model of Large-Batch Training", 2018, section 2.2 and appendix A.1; B. L. Welch,
"The generalization of 'Student's' problem when several different population variances are involved", 1947.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from gpuguide.errors import GpuguideError


@dataclass(frozen=True)
class NoiseScale:
    """Signal and noise of a gradient."""

    signal: float
    """Squared norm of the true gradient, ``|G|²``; the estimate may be negative where noise hides it"""
    noise: float
    """Variance of the gradient of one sequence, summed over all weights, ``tr Σ``"""
    count: int
    """Sequences that it was estimated from"""

    @property
    def batch(self) -> float:
        """Batch size at which noise and signal are equal, ``tr Σ / |G|²``; infinite where no signal is seen."""
        return self.noise / self.signal if self.signal > 0 else math.inf

    def signal_to_noise(self, batch: int) -> float:
        """Return the ratio of the squared norms of signal and noise in the gradient of a batch."""
        return max(self.signal, 0.0) * batch / self.noise if self.noise else math.inf


def gradient_noise_scale(gradients: Iterable[Sequence[torch.Tensor]]) -> NoiseScale:
    """Return signal and noise from gradients of single sequences.

    With ``n`` gradients ``g`` and their mean ``ḡ``, ``tr Σ = n/(n−1) (mean|g|² − |ḡ|²)`` and ``|G|² = |ḡ|² − tr Σ/n``
    are free of bias: it is the paper's estimator with batches of 1 and n.

    Parameters
    ----------
    gradients : iterable of sequences of torch.Tensor
        One sequence of tensors for each gradient, as :func:`sequence_gradients` gives them; only their sum is kept.

    Raises
    ------
    GpuguideError
        If there are fewer than two.
    """
    total: list[torch.Tensor] = []
    squares, count = 0.0, 0
    for gradient in gradients:
        squares += _squared_norm(gradient)
        count += 1
        if not total:
            total = [each.detach().clone() for each in gradient]
        else:
            torch._foreach_add_(total, [each.detach() for each in gradient])
    if count < 2:
        raise GpuguideError(f"There are {count} gradients; the noise between them takes 2 or more.")
    of_mean = _squared_norm(total) / count**2
    noise = count / (count - 1) * (squares / count - of_mean)
    return NoiseScale(of_mean - noise / count, noise, count)


def sequence_gradients(
    loss: Callable[[torch.Tensor], torch.Tensor], parameters: Iterable[nn.Parameter], sequences: Iterable[torch.Tensor]
) -> Iterable[Sequence[torch.Tensor]]:
    """Give the gradient of the loss on one sequence after another; ``.grad`` stays as it is.

    Parameters
    ----------
    loss : callable
        From a batch of one sequence, ``(1, seq)``, to its mean loss.
    parameters : iterable of nn.Parameter
        All have to have part in the loss.
    sequences : iterable of torch.Tensor
        ``(seq,)`` each.
    """
    trained = [each for each in parameters if each.requires_grad]
    for sequence in sequences:
        yield torch.autograd.grad(loss(sequence[None]), trained)


def _squared_norm(tensors: Sequence[torch.Tensor]) -> float:
    return float(torch.stack(torch._foreach_norm([each.detach().double() for each in tensors])).square().sum())


# --- runs that differ in the seed --------------------------------------------------------------------------


@dataclass(frozen=True)
class Spread:
    """Losses of runs that differ in the seed alone."""

    mean: float
    deviation: float
    """Standard deviation between runs"""
    count: int


@dataclass(frozen=True)
class Difference:
    """Difference between two settings, with what chance alone would do."""

    mean: float
    """Mean of the first setting less that of the second"""
    low: float
    high: float
    """Ends of the 95 % confidence interval"""
    p: float
    """Probability of a difference as large by chance, if the settings were equally good"""

    @property
    def beyond_chance(self) -> bool:
        """Whether the interval leaves out zero."""
        return self.p < 0.05


def spread(losses: Sequence[float]) -> Spread:
    """Return mean and standard deviation of the losses of runs with several seeds.

    Raises
    ------
    GpuguideError
        If there are fewer than two, or one is not finite.
    """
    if len(losses) < 2:
        raise GpuguideError(f"{len(losses)} runs show no spread; train with 2 seeds or more.")
    if not all(map(math.isfinite, losses)):
        raise GpuguideError("A loss is not finite: that run diverged; leave it out and say so.")
    return Spread(statistics.fmean(losses), statistics.stdev(losses), len(losses))


def compare(first: Sequence[float], second: Sequence[float]) -> Difference:
    """Return the difference between two settings by Welch's t-test.

    Parameters
    ----------
    first, second : sequence of float
        Losses of each setting, by seed.

    Raises
    ------
    GpuguideError
        As :func:`spread`.
    """
    one, other = spread(first), spread(second)
    parts = [each.deviation**2 / each.count for each in (one, other)]
    error, difference = math.sqrt(sum(parts)), one.mean - other.mean
    if not error:
        return Difference(difference, difference, difference, 0.0 if difference else 1.0)
    freedom = sum(parts) ** 2 / sum(part**2 / (each.count - 1) for part, each in zip(parts, (one, other), strict=True))
    half = t_quantile(0.05, freedom) * error
    return Difference(difference, difference - half, difference + half, t_tail(abs(difference) / error, freedom))


def seeds_needed(deviation: float, difference: float) -> int:
    """Return the seeds of each setting that show a difference in four of five experiments, at p < 0.05.

    The normal approximation, ``2 ((1.96 + 0.84) σ / d)²``: with fewer than ten seeds take two more.

    Raises
    ------
    GpuguideError
        If the difference is zero, or the deviation is negative.
    """
    if not difference or deviation < 0:
        raise GpuguideError(
            f"A difference of {difference} with a deviation of {deviation} cannot be shown; the difference must not be "
            "0, and the deviation 0 or more."
        )
    normal = statistics.NormalDist()
    quantiles = normal.inv_cdf(0.975) + normal.inv_cdf(0.8)
    return max(math.ceil(2 * (quantiles * deviation / difference) ** 2), 2)


def t_tail(t: float, freedom: float) -> float:
    """Return the probability that Student's t lies beyond ``±t``, integrated over the angle ``atan(t/√ν)``.

    There the density is ``cos^(ν−1)`` times a constant, which the integral over all angles gives.
    """
    whole, inside = math.pi / 2, math.atan(t / math.sqrt(freedom))
    return 1 - _integral(freedom, inside) / _integral(freedom, whole)


def t_quantile(p: float, freedom: float) -> float:
    """Return the ``t`` beyond which, on both sides together, Student's t lies with a probability of ``p``."""
    low, high = 0.0, 1.0
    while t_tail(high, freedom) > p:
        high *= 2
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if t_tail(middle, freedom) > p else (low, middle)
    return high


@functools.lru_cache(maxsize=64)
def _integral(freedom: float, angle: float, pieces: int = 2000) -> float:
    """Return the integral of ``cos^(ν−1)`` from 0 to an angle, by the midpoint rule on a grid denser at its end.

    With ``θ = angle (1 − u²)``, the root that the power is near a right angle for few degrees of freedom goes.
    """
    u = (np.arange(pieces) + 0.5) / pieces
    return float((np.cos(angle * (1 - u * u)) ** (freedom - 1) * 2 * u).sum()) * angle / pieces
