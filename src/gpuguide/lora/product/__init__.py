"""The matmul of a frozen matrix with a low-rank update.

* :mod:`~gpuguide.lora.product.autograd`: plainly, and as one step of autograd.
* :mod:`~gpuguide.lora.product.skinny_gemm`: its skinny GEMMs, also as operators of PyTorch.
* :mod:`~gpuguide.lora.product.skinny_gemm_kernels`: their Triton kernels.
"""

from gpuguide.lora.product.autograd import Frozen, Spans, plain_product, product, whole_up

__all__ = ["Frozen", "Spans", "plain_product", "product", "whole_up"]
