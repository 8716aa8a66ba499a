"""The collectives of a data-parallel run: gradients and losses are all-reduced, first values broadcast.

Without a process group of ``torch.distributed``, everything here does nothing.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from gpuguide.precision import LossScaler


def rank() -> int:
    """Return the rank of this process; 0 if it is the only one."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def world_size() -> int:
    """Return the number of processes that share the work."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def all_reduce_sum(*values: float) -> list[float]:
    """Return the sum of each number over all processes."""
    if world_size() == 1:
        return list(values)
    summed = torch.tensor(values, dtype=torch.float64, device="cuda" if dist.get_backend() == "nccl" else "cpu")
    dist.all_reduce(summed)
    return summed.tolist()


def broadcast_from_first(parameter: torch.Tensor) -> None:
    """Overwrite a parameter with the values that it has on rank 0."""
    if world_size() > 1:
        dist.broadcast(parameter.detach(), 0)


class AllReduceScaler(LossScaler):
    """Scaler that all-reduces the complete gradients just before a step unscales them."""

    @torch.no_grad()
    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        """All-reduce the gradients as one flat tensor, then unscale them. Errors as :meth:`LossScaler.unscale_`."""
        if world_size() > 1:
            gradients = [parameter.grad for group in optimizer.param_groups for parameter in group["params"]]
            flat = torch.cat([gradient.flatten() for gradient in gradients])
            dist.all_reduce(flat)
            sizes = [gradient.numel() for gradient in gradients]
            for gradient, summed in zip(gradients, flat.split(sizes), strict=True):
                gradient.copy_(summed.view_as(gradient))
        super().unscale_(optimizer)
