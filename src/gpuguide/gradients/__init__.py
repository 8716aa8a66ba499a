"""Gradients: where they come from, how they change with depth, and which one of a model is wrong.

* :mod:`~gpuguide.gradients.by_hand`: forward and backward pass of a transformer block, written out.
* :mod:`~gpuguide.gradients.kept`: the bytes that a forward pass keeps for the backward pass.
* :mod:`~gpuguide.gradients.differences`: gradients compared with central differences of the loss.
* :mod:`~gpuguide.gradients.depth`: gradient norm by layer, with and without residual connections.
* :mod:`~gpuguide.gradients.report`: the gradient of every parameter, and sentences that name what is wrong;
  :mod:`~gpuguide.gradients.why_none`: why a parameter has no gradient.
* :mod:`~gpuguide.gradients.failures`: ten failures that raise no error, each made and mended.
"""

from gpuguide.gradients.depth import WIRINGS, WiredModel, gradients_between, norm_by_layer
from gpuguide.gradients.differences import central_difference, check_gradients, loss_slice
from gpuguide.gradients.failures import FAILURES, Failure
from gpuguide.gradients.kept import kept_bytes
from gpuguide.gradients.report import Finding, GradientReport, GradientRow, report
from gpuguide.gradients.why_none import Reason, why_none

__all__ = [
    "FAILURES",
    "WIRINGS",
    "Failure",
    "Finding",
    "GradientReport",
    "GradientRow",
    "Reason",
    "WiredModel",
    "central_difference",
    "check_gradients",
    "gradients_between",
    "kept_bytes",
    "loss_slice",
    "norm_by_layer",
    "report",
    "why_none",
]
