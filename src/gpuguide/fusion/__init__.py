"""Kernel fusion: one kernel for several operations, and how to tell beforehand what it will gain.

* :mod:`~gpuguide.fusion.reference`: layer norm, GELU and sums, written out.
* :mod:`~gpuguide.fusion.elementwise`, :mod:`~gpuguide.fusion.layernorm`, :mod:`~gpuguide.fusion.matmul_gelu`: each in
  one kernel, which need Triton; :mod:`~gpuguide.fusion.operators`: two of them as operators with gradients.
* :mod:`~gpuguide.fusion.tracing`: what a step dispatches; :mod:`~gpuguide.fusion.counting`: the kernels that it starts;
  :mod:`~gpuguide.fusion.cost`: the three limits of a step, launches, bytes and FLOPs.
* :mod:`~gpuguide.fusion.diagnose`: which of them holds, and what a CUDA graph or ``torch.compile`` would gain.
"""

from gpuguide.fusion.operators import add_layer_norm, linear_gelu

__all__ = ["add_layer_norm", "linear_gelu"]
