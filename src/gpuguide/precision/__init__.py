"""Number formats in training: what each can hold, what goes wrong at its ends, and what is done about it.

* :mod:`~gpuguide.precision.formats`, :mod:`~gpuguide.precision.rounding`, :mod:`~gpuguide.precision.blocks`: formats
  taken apart, from fp32 to fp4, with rounding, bits and block scales.
* :mod:`~gpuguide.precision.scaler`, :mod:`~gpuguide.precision.training_step`: training in fp16, and in
  :mod:`~gpuguide.precision.wrong_steps` in orders that fail. :mod:`~gpuguide.precision.support`: which formats a device
  multiplies in.
* :mod:`~gpuguide.precision.watching`, :mod:`~gpuguide.precision.tracing`: what a format does to gradients and weights,
  which operation made the first infinity or NaN, and what autocast chose.
* :mod:`~gpuguide.precision.adamw`: an optimizer for weights in bf16. :mod:`~gpuguide.precision.fp8`: a linear layer
  that multiplies in fp8. :mod:`~gpuguide.precision.matmul`, which needs Triton: a matmul kernel to read.
"""

from gpuguide.precision.adamw import AdamW, to_bf16_stochastically
from gpuguide.precision.blocks import BLOCK_FORMATS, BlockFormat, Blocks, quantize_blocks
from gpuguide.precision.formats import FORMATS, FloatFormat, Parts, format_by_name
from gpuguide.precision.fp8 import Fp8, Fp8Linear, fp8_matmul, quantize_fp8, to_fp8
from gpuguide.precision.rounding import decode, encode, numbers, round_stochastically, round_to, spacing
from gpuguide.precision.scaler import LossScaler
from gpuguide.precision.support import autocast, list_supported_formats, require
from gpuguide.precision.tracing import NonFinite, Ran, trace_dtypes, trace_nonfinite
from gpuguide.precision.training_step import StepResult, TrainingSetup, cross_entropy_sum, train_step
from gpuguide.precision.watching import Exponents, Shares, exponents, gradients, shares, unmoved_share
from gpuguide.precision.wrong_steps import WRONG_STEPS

__all__ = [  # noqa: RUF022 - the order of the API reference
    "FORMATS",
    "FloatFormat",
    "Parts",
    "format_by_name",
    "round_to",
    "round_stochastically",
    "spacing",
    "encode",
    "decode",
    "numbers",
    "BLOCK_FORMATS",
    "BlockFormat",
    "Blocks",
    "quantize_blocks",
    "LossScaler",
    "TrainingSetup",
    "StepResult",
    "train_step",
    "cross_entropy_sum",
    "WRONG_STEPS",
    "list_supported_formats",
    "require",
    "autocast",
    "gradients",
    "shares",
    "Shares",
    "unmoved_share",
    "exponents",
    "Exponents",
    "trace_nonfinite",
    "NonFinite",
    "trace_dtypes",
    "Ran",
    "AdamW",
    "to_bf16_stochastically",
    "Fp8Linear",
    "to_fp8",
    "Fp8",
    "quantize_fp8",
    "fp8_matmul",
]
