"""What links carry, and how long it takes to move things over them.

To plan: :func:`time_to_move` over a link of the table :mod:`gpuguide.hardware.links`, for a number of bytes or for what
:func:`model_weights`, :func:`offloaded_layers`, :func:`kv_cache`, :func:`gradient_all_reduce` and
:func:`tensor_parallel_step` return. :func:`offloaded_forward` says what a forward pass takes whose layers come over a
link. To learn latency and bandwidth from times that were measured: :func:`fit_alpha_beta`.

>>> from gpuguide.costs import presets
>>> round(time_to_move(model_weights(presets.shape("llama-3.1-8b")), "pcie-5-x16"), 2)
0.25
"""

from gpuguide.costs.transfers import (
    OffloadedForward,
    Transfer,
    gradient_all_reduce,
    kv_cache,
    model_weights,
    offloaded_forward,
    offloaded_layers,
    tensor_parallel_step,
    time_to_move,
)
from gpuguide.interconnect.alpha_beta import AlphaBeta, Prediction, errors_left_out, fit_alpha_beta

__all__ = [
    "AlphaBeta",
    "OffloadedForward",
    "Prediction",
    "Transfer",
    "errors_left_out",
    "fit_alpha_beta",
    "gradient_all_reduce",
    "kv_cache",
    "model_weights",
    "offloaded_forward",
    "offloaded_layers",
    "tensor_parallel_step",
    "time_to_move",
]
