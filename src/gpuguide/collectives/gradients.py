"""Averages of gradients over ranks: one by one after the backward pass, all at once, or in buckets during it.

A rank computes the gradients of its own sequences. The optimizer needs their mean over all ranks, so that all replicas
take the same step. The ways to get it differ in the number of messages, and in what there is to hide them behind::

    average_each        backward ─────────────────┤ sum sum sum sum … sum   a message for each parameter
    average_flat        backward ─────────────────┤ copy, sum, copy         one message
    Buckets             backward ─────────────────┤                         a message for each bucket, which
                              └ sum   └ sum   └ sum                         starts when its last gradient is there

What is left after the backward pass is *exposed*: the GPU has nothing else to do meanwhile. With :class:`Buckets` that
is at least the last bucket, whose gradients come last.

Each rank's loss is a mean over its own tokens. Where ranks have unequally many, the mean of these means is not the mean
over all tokens; :func:`tokens_per_rank` says by what to divide the sum of the losses.

Source: S. Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", 2020, section 3.2.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.distributed_c10d import _coalescing_manager

from gpuguide.collectives.agreement import require_agreement
from gpuguide.collectives.copied import CopiedMeans, Work
from gpuguide.collectives.lookup import GatheredEmbedding
from gpuguide.errors import GpuguideError

BUCKET_BYTES = 25 * 2**20
"""DDP's too: large enough for the bandwidth of a link, and small enough that the first one can start early"""


def tokens_per_rank(count: int | torch.Tensor, group: dist.ProcessGroup | None = None) -> torch.Tensor:
    """Return the mean number of tokens of a rank: what each rank divides the sum of its tokens' losses by.

    Averaged gradients are then those of the mean over all tokens, so that every token weighs the same on whichever rank
    it lies. A rank without tokens has a sum of zero and adds nothing, where its own mean would be 0/0.

    Parameters
    ----------
    count : int or torch.Tensor
        Targets of this rank that count in its loss; as a tensor, a scalar on the rank's device.
    group : torch.distributed.ProcessGroup, optional
        The ranks; all of them if none is given.

    Returns
    -------
    torch.Tensor
        A scalar in fp32, above 0 even if no rank has a token. On a GPU the host has not waited for it.

    Examples
    --------
    ``(cross_entropy(logits, targets, reduction="sum") / tokens_per_rank((targets != -100).sum())).backward()``
    """
    device = count.device if isinstance(count, torch.Tensor) else _device(group)
    total = torch.as_tensor(count, device=device).to(torch.float32, copy=True)
    dist.all_reduce(total, group=group)
    return total.clamp(min=1) / dist.get_world_size(group)


def average_each(
    parameters: Iterable[nn.Parameter], group: dist.ProcessGroup | None = None, *, at_once: bool = False
) -> None:
    """Average gradients over ranks with a message for each, after the backward pass.

    Parameters
    ----------
    parameters : iterable of nn.Parameter
        Each with its gradient; the same ones in the same order on all ranks.
    group : torch.distributed.ProcessGroup, optional
        The ranks; all of them if none is given.
    at_once : bool
        Whether all messages are started before the first one is waited for.

    Raises
    ------
    GpuguideError
        If a parameter that asks for a gradient has none.
    """
    gradients = _gradients(parameters)
    messages = [each.contiguous() for each in gradients]
    works = [dist.all_reduce(each, group=group, async_op=at_once) for each in messages]
    for work in works:
        if work is not None:
            work.wait()
    _set_means(gradients, messages, group)


def average_flat(parameters: Iterable[nn.Parameter], group: dist.ProcessGroup | None = None) -> None:
    """Average gradients over ranks as one message, after the backward pass. Errors as :func:`average_each`.

    All gradients are copied into one tensor and back, which takes memory for all of them once more.
    """
    gradients = _gradients(parameters)
    flat = torch.cat([each.flatten() for each in gradients])
    dist.all_reduce(flat, group=group)
    flat /= dist.get_world_size(group)
    torch._foreach_copy_(gradients, _views(flat, gradients))


def average_coalesced(parameters: Iterable[nn.Parameter], group: dist.ProcessGroup | None = None) -> None:
    """Average gradients over ranks in one group of NCCL calls, after the backward pass and without a flat copy.

    Gloo copies them into one message. All gradients must have one format.

    Raises
    ------
    GpuguideError
        If a parameter that asks for a gradient has none.
    """
    gradients = _gradients(parameters)
    messages = [each.contiguous() for each in gradients]
    with _coalescing_manager(group=group, async_ops=True) as under_way:
        for each in messages:
            dist.all_reduce(each, group=group)
    under_way.wait()
    _set_means(gradients, messages, group)


class Buckets:
    """Averages of a module's gradients, started in buckets while the backward pass goes on.

    Parameters are put into buckets from the last one to the first, since gradients come in about that order. When the
    last gradient of a bucket is there, all are copied into one flat tensor, and its sum begins. Sums begin in the order
    of buckets on every rank, so that ranks never add up different ones, even where a parameter is used on some ranks
    only; that parameter's bucket and those after it begin in :meth:`wait` then.

    Of each :class:`~gpuguide.collectives.lookup.GatheredEmbedding` in the module, the head's gradient is in the first
    bucket, and :meth:`wait` adds the rows when all sums are complete.

    Parameters
    ----------
    module : nn.Module
        With the same values on all ranks, which nobody checks.
    bucket_bytes : int
        Bytes of gradients from which a bucket is full.
    first : iterable of nn.Parameter
        Trained parameters of the module whose gradients come before those of the last layers: the head's, where it is
        defined first.
    dtype : torch.dtype, optional
        Format that gradients are added up in: ``torch.bfloat16`` halves the bytes, and rounds each gradient and each
        sum to 8 bits. That of each gradient if left out.
    by_copies : bool
        Average by copies between GPUs instead of NCCL's kernels: see :mod:`gpuguide.collectives.copied`. All GPUs must
        be in one machine and able to read each other's memory. Ranks on the CPU exchange the same parts by Gloo.
    group : torch.distributed.ProcessGroup, optional
        The ranks; all of them if none is given.

    Raises
    ------
    GpuguideError
        If no parameter asks for a gradient, ``first`` names one that is not trained, a bucket would hold nothing, or
        ranks have parameters of other names, shapes or formats, or put them into other buckets, or GPUs cannot read
        each other's memory for ``by_copies``.

    Notes
    -----
    In each step::

        optimizer.zero_grad()
        with buckets.no_sync():  # all micro-batches but the last one
            loss(first).backward()
        loss(last).backward()
        buckets.wait()
        optimizer.step()
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        bucket_bytes: int = BUCKET_BYTES,
        first: Iterable[nn.Parameter] = (),
        dtype: torch.dtype | None = None,
        by_copies: bool = False,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        self.names: dict[nn.Parameter, str] = {
            each: name for name, each in module.named_parameters() if each.requires_grad
        }
        if not self.names:
            raise GpuguideError("No parameter of the module asks for a gradient; there is nothing to add up.")
        if bucket_bytes < 1:
            raise GpuguideError(f"bucket_bytes is {bucket_bytes}; it must be 1 or more.")
        self.group, self.world_size = group, dist.get_world_size(group)
        self._lookups = [each for each in module.modules() if isinstance(each, GatheredEmbedding)]
        ordered = list(dict.fromkeys([*first, *(each.weight for each in self._lookups), *reversed(self.names)]))
        for each in ordered:
            if each not in self.names:
                raise GpuguideError(
                    f"A parameter of shape {tuple(each.shape)} comes first, and the module does not train it; leave it "
                    "out of first."
                )
        copied = CopiedMeans(group) if by_copies and self.world_size > 1 else None
        self.buckets = [_Bucket(each, dtype, copied) for each in _in_buckets(ordered, bucket_bytes)]
        messages = {f"bucket {number}": bucket.flat for number, bucket in enumerate(self.buckets)}
        require_agreement({**{self.names[each]: each for each in ordered}, **messages}, group)
        if copied is not None:
            for bucket in self.buckets:
                copied.share(bucket.message)
        self.unused: list[str] = []
        """Names of the parameters that had no gradient on this rank at the last :meth:`wait`, and count as zeros"""
        self._adds_up = True
        self._begun = 0
        """Buckets whose sums have begun"""
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(self._note(bucket))
            for bucket in self.buckets
            for parameter in bucket.parameters
            if self.world_size > 1
        ]

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Let gradients add up on this rank only: around each backward pass but the last one of a step."""
        before, self._adds_up = self._adds_up, False
        try:
            yield
        finally:
            self._adds_up = before

    def synchronised(self, is_last: bool) -> AbstractContextManager[None]:
        """Return the context of a micro-batch's backward pass: :meth:`no_sync`, or one that ends with :meth:`wait`.

        It is what :class:`gpuguide.training.TrainingStep` takes as ``synchronised``.
        """
        return self._waiting() if is_last else self.no_sync()

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        yield
        self.wait()

    def wait(self) -> None:
        """Begin the sums that have not begun, and wait for all: then each gradient is the mean over ranks.

        On a GPU only the current stream waits. A parameter without a gradient on this rank counts as zeros here. One
        that no rank used gets zeros for its gradient, so that an optimizer may still decay it.

        Raises
        ------
        GpuguideError
            If no parameter has a gradient on this rank: the backward pass is missing.
        """
        self.unused = [name for each, name in self.names.items() if each.grad is None]
        if len(self.unused) == len(self.names):
            raise GpuguideError("No parameter has a gradient yet; call wait() after the backward pass.")
        if self.world_size > 1:
            self._begin_ready(all_of_them=True)
            for bucket in self.buckets:
                bucket.finish()
            self._begun = 0
        for lookup in self._lookups:
            lookup.add_rows()

    def close(self) -> None:
        """Take the hooks off the parameters, which keep their gradients."""
        while self._hooks:
            self._hooks.pop().remove()

    def _note(self, bucket: _Bucket) -> Any:
        """Return the hook of a bucket's parameters, called when a gradient is there."""

        def hook(parameter: nn.Parameter) -> None:
            if not self._adds_up:
                return
            if bucket.work is not None or not bucket.missing:
                raise GpuguideError(
                    f"The gradient of {self.names[parameter]} changed after its sum over ranks had begun. Put all "
                    "backward passes of a step but the last one into no_sync(), and call wait() after the last one."
                )
            bucket.missing -= 1
            if not bucket.missing:
                self._begin_ready()

        return hook

    def _begin_ready(self, all_of_them: bool = False) -> None:
        """Begin the sums of buckets that are complete and whose turn it is."""
        while self._begun < len(self.buckets) and (all_of_them or not self.buckets[self._begun].missing):
            self.buckets[self._begun].begin(self.group)
            self._begun += 1


class _Bucket:
    """Gradients that are added up as one message."""

    def __init__(
        self, parameters: Sequence[nn.Parameter], dtype: torch.dtype | None, copied: CopiedMeans | None
    ) -> None:
        self.parameters, self.copied = parameters, copied
        numbers = sum(each.numel() for each in parameters)
        zeros = torch.zeros if copied is None else copied.zeros
        self.message = zeros(numbers, dtype=dtype or parameters[0].dtype, device=parameters[0].device)
        self.flat = self.message[:numbers]
        self.views = _views(self.flat, parameters)
        self.missing = len(parameters)
        """Gradients that are not there yet"""
        self.work: Work | None = None

    @torch.no_grad()
    def begin(self, group: dist.ProcessGroup | None) -> None:
        """Copy the gradients into the message, zeros for those that are missing, and begin its sum."""
        for parameter in self.parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        torch._foreach_copy_(self.views, [each.grad for each in self.parameters])  # type: ignore[misc]
        if self.flat.dtype == self.parameters[0].dtype:
            for view, parameter in zip(self.views, self.parameters, strict=True):
                parameter.grad = view  # what autograd had made is free now
        if self.copied is not None:
            self.work = self.copied.begin(self.message)
        else:
            self.work = dist.all_reduce(self.flat, op=dist.ReduceOp.AVG, group=group, async_op=True)

    @torch.no_grad()
    def finish(self) -> None:
        """Wait for the mean, and see to it that the gradients are it."""
        assert self.work is not None
        self.work.wait()
        if self.flat.dtype != self.parameters[0].dtype:
            torch._foreach_copy_([each.grad for each in self.parameters], self.views)  # type: ignore[misc]
        self.work, self.missing = None, len(self.parameters)


def _in_buckets(parameters: Sequence[nn.Parameter], size: int) -> list[list[nn.Parameter]]:
    """Return parameters in runs of one format and device, each of which ends where it has ``size`` bytes."""
    found: list[list[nn.Parameter]] = [[]]
    held = 0
    for each in parameters:
        last = found[-1]
        if last and (held >= size or (each.dtype, each.device) != (last[0].dtype, last[0].device)):
            found.append([])
            held = 0
        found[-1].append(each)
        held += each.numel() * each.element_size()
    return found


def _views(flat: torch.Tensor, shapes: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return parts of a flat tensor in the shapes of others."""
    parts = flat.split([each.numel() for each in shapes])
    return [part.view(each.shape) for part, each in zip(parts, shapes, strict=True)]


def _gradients(parameters: Iterable[nn.Parameter]) -> list[torch.Tensor]:
    """Return the gradients of parameters, all of which must have one."""
    found = []
    for number, each in enumerate(parameters):
        if each.requires_grad and each.grad is None:
            raise GpuguideError(
                f"Parameter {number} of shape {tuple(each.shape)} has no gradient. If it has none on another rank "
                "either, leave it out; if it has one there, set zeros here, or take Buckets, which adds zeros up."
            )
        if each.grad is not None:
            found.append(each.grad)
    if not found:
        raise GpuguideError("No parameter asks for a gradient; there is nothing to add up.")
    return found


def _set_means(gradients: list[torch.Tensor], messages: list[torch.Tensor], group: dist.ProcessGroup | None) -> None:
    """Set gradients to the sums in messages over the number of ranks; where both are one tensor, divide it."""
    torch._foreach_div_(messages, dist.get_world_size(group))
    for gradient, message in zip(gradients, messages, strict=True):
        if message is not gradient:  # its numbers did not lie in order, and may lie otherwise on another rank
            gradient.copy_(message)


def _device(group: dist.ProcessGroup | None) -> torch.device:
    return torch.device("cuda" if "nccl" in dist.get_backend(group) else "cpu")
