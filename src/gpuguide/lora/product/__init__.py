"""The product of a frozen matrix with a thin one added to it.

* :mod:`~gpuguide.lora.product.autograd`: plainly, and as one step of autograd.
* :mod:`~gpuguide.lora.product.thin`: the products with a thin matrix that it is made of, also as operators of PyTorch.
* :mod:`~gpuguide.lora.product.thin_kernels`: what these start on a GPU, in Triton.
"""

from gpuguide.lora.product.autograd import Frozen, Spans, plain_product, product, whole_up

__all__ = ["Frozen", "Spans", "plain_product", "product", "whole_up"]
