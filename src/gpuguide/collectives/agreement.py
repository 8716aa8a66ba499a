"""Whether all ranks are about to add up the same tensors, asked before a collective that would hang, or mix them up.

Ranks must make the same collectives in the same order, with tensors of the same shape and format. Where they do not,
NCCL waits until its time limit, or adds up what does not belong together, and says neither what nor where.

With ``TORCH_DISTRIBUTED_DEBUG=DETAIL`` PyTorch checks every collective in this way, and each waits for all ranks then.
Here the tensors of a whole model are compared once.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist

from gpuguide.errors import GpuguideError

Description = list[tuple[str, tuple[int, ...], str]]
"""Name, shape and format of each tensor, in order"""


def require_agreement(tensors: Mapping[str, torch.Tensor], group: dist.ProcessGroup | None = None) -> None:
    """Check that all ranks have tensors of the same names, shapes and formats in the same order.

    All ranks of the group must call it: it gathers the descriptions.

    Parameters
    ----------
    tensors : mapping
        From names to tensors, in the order in which they are added up.
    group : torch.distributed.ProcessGroup, optional
        The ranks; all of them if none is given.

    Raises
    ------
    GpuguideError
        On every rank, about the first difference: its place, and what rank 0 and the other rank have there.
    """
    own: Description = [
        (name, tuple(each.shape), str(each.dtype).removeprefix("torch.")) for name, each in tensors.items()
    ]
    all_of_them: list[Description] = [[] for _ in range(dist.get_world_size(group))]
    dist.all_gather_object(all_of_them, own, group=group)
    first = all_of_them[0]
    for rank, other in enumerate(all_of_them):
        for place in range(max(len(first), len(other))):
            theirs, expected = (_text(each, place) for each in (other, first))
            if theirs != expected:
                raise GpuguideError(
                    f"Ranks do not add up the same tensors: at place {place} rank 0 has {expected}, and rank {rank} "
                    f"has {theirs}. Give all ranks the same tensors in the same order."
                )


def _text(tensors: Description, place: int) -> str:
    if place >= len(tensors):
        return "nothing"
    name, shape, dtype = tensors[place]
    return f"{name} {shape} in {dtype}"
