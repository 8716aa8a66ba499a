"""Sums and exchanges over GPUs: what they do, how a ring does them, and how to hide them behind a backward pass.

To understand: :mod:`~gpuguide.collectives.reference` has the six collectives on lists, and
:func:`~gpuguide.collectives.ring.ring_all_reduce` is an all-reduce by send and receive.

To train: :class:`~gpuguide.collectives.gradients.Buckets` averages a module's gradients during its backward pass, and
:func:`~gpuguide.collectives.gradients.tokens_per_rank` weights the losses of ranks that have unequally many tokens.
:func:`~gpuguide.collectives.agreement.require_agreement` names the rank whose tensors differ, before anything hangs.

To plan: :func:`~gpuguide.collectives.mapping.plan` counts what each way of dividing a model sends in a step, and over
which link that is in time. :mod:`~gpuguide.collectives.cost` has the ring, the tree and the levels behind it. Planning
needs no PyTorch: what does is imported when it is asked for.

>>> from gpuguide.costs import presets
>>> division = plan(presets.shape("llama-3.1-70b"), 8, ["nvlink-4", "pcie-5-x16"])["tensor parallel"]
>>> division.messages, division.in_time
(4480, ('nvlink-4',))
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuguide.collectives.cost import bus_bandwidth
from gpuguide.collectives.mapping import Division, plan

if TYPE_CHECKING:
    from gpuguide.collectives.agreement import require_agreement
    from gpuguide.collectives.gradients import Buckets, average_coalesced, average_each, average_flat, tokens_per_rank
    from gpuguide.collectives.lookup import GatheredEmbedding
    from gpuguide.collectives.ring import ring_all_reduce

__all__ = [
    "Buckets",
    "Division",
    "GatheredEmbedding",
    "average_coalesced",
    "average_each",
    "average_flat",
    "bus_bandwidth",
    "plan",
    "require_agreement",
    "ring_all_reduce",
    "tokens_per_rank",
]

OF_TENSORS = {
    "Buckets": "gradients",
    "GatheredEmbedding": "lookup",
    "average_coalesced": "gradients",
    "average_each": "gradients",
    "average_flat": "gradients",
    "require_agreement": "agreement",
    "ring_all_reduce": "ring",
    "tokens_per_rank": "gradients",
}
"""Module of each name that needs PyTorch"""


def __getattr__(name: str) -> Any:
    """Import what needs PyTorch when it is asked for."""
    from importlib import import_module

    if name not in OF_TENSORS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{OF_TENSORS[name]}"), name)


def __dir__() -> list[str]:
    """List also what is imported when it is asked for."""
    return sorted({*globals(), *OF_TENSORS})
