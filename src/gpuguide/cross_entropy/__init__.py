"""Cross-entropy: the loss of language models, as it is defined, as it is computed, and without its logits.

All losses are in nats. :mod:`~gpuguide.cross_entropy.reference` explains; :func:`linear_cross_entropy` replaces
a head and a loss; :mod:`~gpuguide.cross_entropy.cost` predicts what both cost.
"""

from gpuguide.cross_entropy.chunked import linear_cross_entropy
from gpuguide.cross_entropy.reference import cross_entropy

__all__ = ["cross_entropy", "linear_cross_entropy"]
