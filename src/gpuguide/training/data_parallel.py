"""Several processes, a GPU each, that train one model on other sequences: replicas (DDP), or shards (FSDP2).

Both are PyTorch's own. A replica has everything, and gradients are added up over the processes while the backward pass
goes on. A shard has its part of every parameter, gradient and state; the whole of a layer is gathered before it is
used. Whoever starts the processes is ``torchrun``:

    torchrun --nproc-per-node 2 train.py

Gradients are averaged over processes: each loss is a mean over as many tokens. Over micro-batches they are added up
where they were computed, and over processes once, in the last one. DDP decides that in the forward pass already, so
that :func:`synchronise_last` goes around forward *and* backward.

Sources: S. Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", 2020; PyTorch,
"Getting Started with Fully Sharded Data Parallel (FSDP2)".
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gpuguide.training.distributed import world_size
from gpuguide.training.step import Loss, Synchronised


class LossModule(nn.Module):
    """A model and its loss as one module: what a wrapper of modules needs to see.

    Parameters
    ----------
    model : nn.Module
        The model.
    loss : callable
        From tokens and targets to the mean loss of the model.
    """

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        super().__init__()
        self.model = model
        self._loss = loss

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the mean loss of tokens and targets, ``(batch, seq)`` both."""
        return self._loss(tokens, targets)


def replicate(module: LossModule, *, static_graph: bool = False, bucket_mb: int = 25) -> DistributedDataParallel:
    """Return a replica for each process; all begin with the values of rank 0.

    Parameters
    ----------
    module : LossModule
        On the device of this process.
    static_graph : bool
        Whether every step uses the same parameters, so that DDP need not look which ones a step used.
    bucket_mb : int
        MiB of gradients that are added up together.
    """
    device = next(module.parameters()).device
    return DistributedDataParallel(
        module,
        device_ids=[device.index] if device.type == "cuda" else None,
        gradient_as_bucket_view=True,
        static_graph=static_graph,
        bucket_cap_mb=bucket_mb,
    )


def synchronise_last(replica: DistributedDataParallel) -> Synchronised:
    """Return the contexts of micro-batches in which a replica adds up gradients with the last one only."""

    def context(is_last: bool) -> AbstractContextManager[object]:
        return nullcontext() if is_last else replica.no_sync()

    return context


def shard(
    module: LossModule, blocks: Iterable[nn.Module], *, dtype: torch.dtype = torch.bfloat16, reshard: bool = True
) -> Any:
    """Divide a module over all processes, in place, and return it (FSDP2).

    Parameters are kept and updated in their own format; layers compute in ``dtype``, and gradients are added up in
    fp32.

    Parameters
    ----------
    module : LossModule
        On the device of this process; all have the same values.
    blocks : iterable of nn.Module
        Layers that are gathered one at a time.
    dtype : torch.dtype
        Format that the layers compute in.
    reshard : bool
        Whether a layer is given back after its forward pass and gathered again for the backward pass.
    """
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    for block in blocks:
        fully_shard(block, mp_policy=policy, reshard_after_forward=reshard)
    return fully_shard(module, mp_policy=policy, reshard_after_forward=False)


def synchronise_last_shard(module: Any) -> Synchronised:
    """Return the contexts of micro-batches in which shards add up gradients with the last one only."""

    @contextmanager
    def context(is_last: bool) -> Any:
        module.set_requires_gradient_sync(is_last)
        yield

    return context


def sum_after_backward(parameters: Iterable[nn.Parameter]) -> None:
    """Average gradients over processes as one tensor, after the backward pass: what DDP overlaps with it, by hand."""
    gradients = [each.grad for each in parameters if each.grad is not None]
    flat = torch.cat([each.flatten() for each in gradients])
    torch.distributed.all_reduce(flat)
    flat /= world_size()
    for gradient, mean in zip(gradients, flat.split([each.numel() for each in gradients]), strict=True):
        gradient.copy_(mean.view_as(gradient))
