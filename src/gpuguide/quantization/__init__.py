"""Weights in 8 or 4 bits: the matrices of linear layers take a half or a quarter of the bytes that they take in bf16.

While a model writes a few sequences, each token takes as long as reading the weights, so fewer bytes are less time.
Only weights are quantised; inputs and outputs stay floating point, and a kernel turns weights back as it reads them. A
weight becomes a small integer, and weights that lie in one row and near each other share a scale, a floating-point
number: with a scale of 0.02 the integer 3 reads as 0.06. :func:`round_to_nearest` is the idea in a few lines.

:class:`Int8` has one scale a row: ``w ≈ q * scale``, with q from -127 to 127. For :class:`Int4` that is too coarse,
since the largest of thousands of weights would decide how far apart 16 values lie. So each group of 128 inputs has a
scale: ``w ≈ (q - 8) * scale``, with q from 0 to 15. From -8 to 7 there is one value more below zero than above, and a
negative scale turns that around. A scale for which the largest weights of a group are out of range is often the better
one: those few are clipped to -8 or 7, and for all others the values lie closer together. So several scales are tried,
and the one with the least squared error is kept.

This looks at weights only. GPTQ and AWQ look at a layer's inputs as well, and keep the error of its outputs small.

References
----------
ggml-org/llama.cpp, ``ggml/src/ggml-quants.c`` at 01243c58, ``quantize_row_q4_0_ref``, for scales with a sign.
mit-han-lab/llm-awq, ``awq/quantize/qmodule.py`` at 460d6d45, ``order_map``, for the order in a word; there the eight
values that share one are of neighbouring outputs.
"""

from __future__ import annotations

from gpuguide.quantization.formats import GROUPS, Int4, Int8, linear, pack, unpack
from gpuguide.quantization.replacing import linear_layers, quantize_model, relative_errors
from gpuguide.quantization.rounding import quantize_int4, quantize_int8, round_to_nearest

__all__ = [  # noqa: RUF022 - the order of the API reference
    "GROUPS",
    "round_to_nearest",
    "quantize_int8",
    "quantize_int4",
    "Int8",
    "Int4",
    "pack",
    "unpack",
    "linear",
    "quantize_model",
    "relative_errors",
    "linear_layers",
]
