"""A linear layer with three matmuls in fp8: weights and activations in e4m3, gradients in e5m2.

Eight bits hold few numbers, so each tensor, or each block of one, is divided by a scale that brings its largest value
to the largest number of the format; the result is multiplied by both scales. Matmuls accumulate in fp32, and weights
and their gradients stay in the optimizer's dtype. Two recipes:

* ``"tensor"``: one scale for a whole tensor, taken anew each time. One outlier makes all others small.
* ``"block"``: a scale for 128 neighbouring values along the axis that is summed over, and for 128 x 128 weights.

:mod:`~gpuguide.precision.fp8.matrix` rounds and multiplies, :mod:`~gpuguide.precision.fp8.kernels` rounds on a GPU in
two reads, :mod:`~gpuguide.precision.fp8.layer` is the layer.

References
----------
P. Micikevicius et al., "FP8 Formats for Deep Learning", 2022, https://arxiv.org/abs/2209.05433, section 3. DeepSeek-AI,
"DeepSeek-V3 Technical Report", 2024, https://arxiv.org/abs/2412.19437, section 3.3.2, for the blocks.
"""

from gpuguide.precision.fp8.layer import Fp8Linear, Recipe, to_fp8
from gpuguide.precision.fp8.matrix import Fp8, fp8_matmul, quantize_fp8, quantize_fp8_with_transpose

__all__ = [  # noqa: RUF022 - the order of the API reference
    "Fp8Linear",
    "to_fp8",
    "Recipe",
    "Fp8",
    "quantize_fp8",
    "quantize_fp8_with_transpose",
    "fp8_matmul",
]
