"""What links carry, and how long it takes to move things over them.

To plan: :func:`time_to_move` over a link of the table :mod:`gpuguide.hardware.links`, for a number of bytes or for what
:func:`model_weights`, :func:`offloaded_layers`, :func:`kv_cache`, :func:`gradient_all_reduce` and
:func:`tensor_parallel_step` return. :func:`offloaded_forward` says what a forward pass takes whose layers come over a
link. To learn latency and bandwidth from times that were measured: :func:`fit_alpha_beta`, or :func:`fit_protocols`
where a library has several protocols. :func:`time_to_move` takes such a fit in place of a link.

To find out what this machine has: :func:`discover`, and :func:`measure` for what each link of it carries.

To move things fast: a :class:`Ring` copies pageable memory to and from a GPU, :class:`OffloadedLayers` runs a
model whose layers come over a link, :class:`OneShotAllReduce` adds up small tensors of several GPUs, and
:class:`TensorParallelMLP` divides a layer among them. A :class:`Team` starts a process for each GPU. These import
PyTorch, when they are first asked for.

>>> from gpuguide.costs import presets
>>> round(time_to_move(model_weights(presets.shape("llama-3.1-8b")), "pcie-5-x16"), 2)
0.25
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
from gpuguide.interconnect.alpha_beta import (
    AlphaBeta,
    HeldOutTime,
    ProtocolLines,
    errors_left_out,
    fit_alpha_beta,
    fit_protocols,
)
from gpuguide.interconnect.discovery import GpuTopology, discover

if TYPE_CHECKING:
    from gpuguide.interconnect.allreduce import OneShotAllReduce
    from gpuguide.interconnect.copies import Ring
    from gpuguide.interconnect.measuring import measure
    from gpuguide.interconnect.offload import OffloadedLayers
    from gpuguide.interconnect.processes import Team
    from gpuguide.interconnect.tensor_parallel import TensorParallelMLP

__all__ = [
    "AlphaBeta",
    "GpuTopology",
    "HeldOutTime",
    "OffloadedForward",
    "OffloadedLayers",
    "OneShotAllReduce",
    "ProtocolLines",
    "Ring",
    "Team",
    "TensorParallelMLP",
    "Transfer",
    "discover",
    "errors_left_out",
    "fit_alpha_beta",
    "fit_protocols",
    "gradient_all_reduce",
    "kv_cache",
    "measure",
    "model_weights",
    "offloaded_forward",
    "offloaded_layers",
    "tensor_parallel_step",
    "time_to_move",
]

OF_TENSORS = {
    "OffloadedLayers": "offload",
    "OneShotAllReduce": "allreduce",
    "Ring": "copies",
    "Team": "processes",
    "TensorParallelMLP": "tensor_parallel",
    "measure": "measuring",
}
"""In which module each name stands that needs PyTorch, so that planning starts without it"""


def __getattr__(name: str) -> Any:
    """Import what needs PyTorch when it is asked for."""
    from importlib import import_module

    if name not in OF_TENSORS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{OF_TENSORS[name]}"), name)


def __dir__() -> list[str]:
    """List also what is imported when it is asked for: shells complete it, and the API reference describes it."""
    return sorted({*globals(), *OF_TENSORS})
