"""What the processes of a data-parallel run have to tell one another: gradients, losses, first values.

Everything here does nothing where no group of ``torch.distributed`` was joined.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from gpuguide.precision import LossScaler


def rank() -> int:
    """Return the number of this process; 0 where it is alone."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def processes() -> int:
    """Return how many processes share the work."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def total(*values: float) -> list[float]:
    """Return the sums of numbers over all processes."""
    if processes() == 1:
        return list(values)
    summed = torch.tensor(values, dtype=torch.float64, device="cuda" if dist.get_backend() == "nccl" else "cpu")
    dist.all_reduce(summed)
    return summed.tolist()


def take_from_first(parameter: torch.Tensor) -> None:
    """Give a parameter the values that it has in the first process."""
    if processes() > 1:
        dist.broadcast(parameter.detach(), 0)


class SummingScaler(LossScaler):
    """Sums the gradients of all processes when they are complete, which is where a step unscales them."""

    @torch.no_grad()
    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        """Sum the gradients in one piece, then unscale them. Errors as :meth:`LossScaler.unscale_`."""
        if processes() > 1:
            gradients = [each.grad for group in optimizer.param_groups for each in group["params"]]
            flat = torch.cat([each.flatten() for each in gradients])
            dist.all_reduce(flat)
            for each, summed in zip(gradients, flat.split([each.numel() for each in gradients]), strict=True):
                each.copy_(summed.view_as(each))
        super().unscale_(optimizer)
