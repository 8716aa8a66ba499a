"""Logits: from a hidden state to scores, from scores to probabilities, from probabilities to a token.

All functions take logits of shape ``(..., vocab_size)``. These are plain versions, written to be read:
probabilities, changes of the distribution, the choice of a token, the head that makes the scores, and what these cost.
:func:`fused_softmax` and :func:`fused_log_sum_exp` are the fast ones, with kernels for long rows.

Sampling changes logits in a fixed order, that of ``transformers``: temperature, then top-k, then top-p on what top-k
left (with its probabilities adding up to one again), then min-p. :func:`adjust` does all four. A token that is
excluded has the logit ``-inf``, hence the probability zero. The kept tokens depend on the values alone and never on
their positions: tokens that tie with the last one kept are kept too.

Functions that change or sample logits refuse rows that are no distribution (NaN, ``+inf``, or nothing but ``-inf``)
with a :class:`ValueError`. To know, they wait for the device that holds the logits.
"""

from __future__ import annotations

from gpuguide.logits.adjusting import (
    adjust,
    keep_min_p,
    keep_top_k,
    keep_top_p,
    with_repetition_penalty,
    with_temperature,
)
from gpuguide.logits.checks import (
    check_settings,
    check_shape,
)
from gpuguide.logits.choosing import (
    greedy,
    sample,
)
from gpuguide.logits.cost import (
    head_bytes,
    head_flops,
    head_intensity,
    head_turning_point,
    log_sum_exp_bytes,
    logits_bytes,
    softmax_bytes,
)
from gpuguide.logits.head import (
    logit_lens,
    project,
)
from gpuguide.logits.operators import (
    fused_log_sum_exp,
    fused_softmax,
)
from gpuguide.logits.probabilities import (
    entropy,
    log_softmax,
    log_sum_exp,
    promote_to_fp32,
    softmax,
    softmax_naive,
)

__all__ = [  # noqa: RUF022 - the order of the API reference
    "softmax_naive",
    "softmax",
    "log_sum_exp",
    "log_softmax",
    "fused_softmax",
    "fused_log_sum_exp",
    "entropy",
    "promote_to_fp32",
    "with_temperature",
    "keep_top_k",
    "keep_top_p",
    "keep_min_p",
    "with_repetition_penalty",
    "adjust",
    "greedy",
    "sample",
    "project",
    "logit_lens",
    "softmax_bytes",
    "log_sum_exp_bytes",
    "logits_bytes",
    "head_flops",
    "head_bytes",
    "head_intensity",
    "head_turning_point",
    "check_settings",
    "check_shape",
]
