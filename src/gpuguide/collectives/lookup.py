"""The token embedding of a model whose head is tied to it: its gradient goes over the link as the rows looked up.

The matrix of a tied head has two gradients. That of the head is whole and comes first in a backward pass; that of the
lookup comes last, and has a row for each token of the batch and zeros for the rest of the vocabulary. Autograd adds the
two up before anything sees them, so that the largest gradient of a small model is the last one, and no backward pass is
left to hide its sum behind: in GPT-2 small that is 155 of 498 MB in fp32.

Here the two stay apart. The head's gradient is all-reduced behind the backward pass, and after it only the rows and
their tokens are gathered: for 8 × 1024 tokens 25 MB from each rank. A rank sends its rows to ``n − 1`` others, and of a
whole matrix ``2 (n − 1) / n``, so that rows are fewer bytes while all ranks together have fewer tokens in a step than
twice the vocabulary. With more ranks, all-reduce the matrix.

Source: A. Sergeev, M. Del Balso, "Horovod: fast and easy distributed deep learning in TensorFlow", 2018, whose sparse
gradients are gathered.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from gpuguide.collectives.torch_names import all_gather_single
from gpuguide.errors import GpuguideError


class GatheredEmbedding(nn.Module):
    """An embedding with the weights of another one, whose gradient :meth:`add_rows` brings.

    Parameters
    ----------
    embedding : nn.Embedding
        Tied to a head, which gives its weights a gradient in each backward pass; of the weights that are trained, with
        none of the options that change their gradient or themselves.
    group : torch.distributed.ProcessGroup, optional
        The ranks; all of them if none is given.

    Raises
    ------
    GpuguideError
        If the weights ask for no gradient, or the embedding has ``padding_idx``, ``max_norm``, ``scale_grad_by_freq``
        or ``sparse``.

    Notes
    -----
    Put it in the place of the embedding before :class:`~gpuguide.collectives.gradients.Buckets` are made. They add the
    rows when their sums are complete. All ranks must have equally many tokens in a step, which nobody checks.
    """

    def __init__(self, embedding: nn.Embedding, group: dist.ProcessGroup | None = None) -> None:
        super().__init__()
        if not embedding.weight.requires_grad:
            raise GpuguideError("The embedding's weights ask for no gradient; there are no rows to gather.")
        for option in ("padding_idx", "max_norm", "scale_grad_by_freq", "sparse"):
            value = getattr(embedding, option)
            if value is not None and value is not False:  # a padding_idx of 0 is one, too
                raise GpuguideError(f"The embedding has {option}, which a gathered one does not know; leave it out.")
        self.weight: nn.Parameter = embedding.weight  # type: ignore[assignment]  # PyTorch calls it a Tensor
        self.group = group
        self._looked_up: list[tuple[torch.Tensor, torch.Tensor]] = []
        # Something must ask for a gradient, or autograd would not come back here; the weights do not.
        self._anchor = torch.zeros((), device=self.weight.device, requires_grad=True)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the rows of tokens: any shape to the same with the hidden size behind it."""
        found: torch.Tensor = _Lookup.apply(tokens, self.weight.detach(), self._anchor, self._looked_up)
        return found

    @torch.no_grad()
    def add_rows(self) -> None:
        """Add the mean over ranks of the lookups' gradients to that of the weights, which must be a mean already.

        :meth:`Buckets.wait <gpuguide.collectives.gradients.Buckets.wait>` calls it. Whoever averages the head's
        gradient in another way calls it afterwards. GPUs add the same bits on every rank. A processor does so with one
        thread, and with several it may round each rank's sum in another way. Of a GPU only the current stream waits.

        Raises
        ------
        GpuguideError
            If nothing was looked up in a backward pass since the last call, or the weights have no gradient.
        """
        if not self._looked_up:
            raise GpuguideError(
                "No lookup has a gradient since the rows were last added. Buckets.wait() adds them by itself; if you "
                "average in another way, call add_rows() once a step, after that."
            )
        if self.weight.grad is None:
            raise GpuguideError("The embedding's weights have no gradient; tie them to a head, or keep nn.Embedding.")
        world_size = dist.get_world_size(self.group)
        tokens = torch.cat([each.flatten() for each, _ in self._looked_up])
        rows = torch.cat([each.flatten(0, -2) for _, each in self._looked_up])
        self._looked_up.clear()
        if world_size > 1:
            tokens, rows = (_gather(each, world_size, self.group) for each in (tokens, rows))
        # On a GPU this sorts the tokens first; index_add_ would add rows of one token in another order on each rank.
        self.weight.grad.index_put_((tokens,), (rows / world_size).to(self.weight.dtype), accumulate=True)


class _Lookup(torch.autograd.Function):
    """Rows of a matrix, whose gradients are kept with their tokens."""

    @staticmethod
    def forward(
        ctx: Any,
        tokens: torch.Tensor,
        weight: torch.Tensor,
        anchor: torch.Tensor,
        looked_up: list[tuple[torch.Tensor, torch.Tensor]],
    ) -> torch.Tensor:
        ctx.save_for_backward(tokens)
        ctx.looked_up = looked_up
        return functional.embedding(tokens, weight)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[None, None, None, None]:
        (tokens,) = ctx.saved_tensors
        ctx.looked_up.append((tokens, gradients[0]))
        return None, None, None, None


def _gather(own: torch.Tensor, world_size: int, group: dist.ProcessGroup | None) -> torch.Tensor:
    """Return the tensors of all ranks, one after another."""
    whole = own.new_empty(world_size * len(own), *own.shape[1:])
    all_gather_single(whole, own.contiguous(), group=group)
    return whole
