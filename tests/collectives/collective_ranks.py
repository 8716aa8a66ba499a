"""What ranks run in tests of collectives."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from gpuguide.collectives import (
    Buckets,
    GatheredEmbedding,
    average_coalesced,
    average_each,
    average_flat,
    require_agreement,
    ring_all_reduce,
    tokens_per_rank,
)
from gpuguide.interconnect.processes import Member

VOCAB, HIDDEN, SEQ = 19, 8, 6


class TinyModel(nn.Module):
    """A tied embedding, a layer whose order of use is not that of registration, and one that can be left out."""

    def __init__(self, skips: bool = False, reduction: str = "mean") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(VOCAB, HIDDEN)
        self.late, self.early = nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.skips, self.reduction = skips, reduction

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.early(self.embedding(tokens)))
        hidden = hidden if self.skips else torch.tanh(self.late(hidden))
        logits = (hidden @ self.embedding.weight.T).flatten(0, 1)
        return functional.cross_entropy(logits, targets.flatten(), reduction=self.reduction)


def sequences(ranks: int, of_each: int = 2) -> torch.Tensor:
    """All ranks' sequences, (ranks, of each, seq + 1)."""
    return torch.randint(VOCAB, (ranks, of_each, SEQ + 1), generator=torch.Generator().manual_seed(1))


def whole_batch(model: nn.Module, given: torch.Tensor) -> list[torch.Tensor]:
    """Gradients of one process with all sequences."""
    model.zero_grad()
    whole = given.flatten(0, 1)
    model(whole[:, :-1], whole[:, 1:]).backward()
    return [torch.zeros_like(each) if each.grad is None else each.grad.clone() for each in model.parameters()]


def error(model: nn.Module, right: list[torch.Tensor]) -> float:
    """Largest difference of a gradient, as a share of the largest number."""
    found = [each.grad for each in model.parameters()]
    largest = max(float(each.abs().max()) for each in right)
    return max(float((one - other).abs().max()) for one, other in zip(found, right, strict=True)) / largest  # type: ignore[operator]


def averaged(member: Member, name: str, steps: int = 2) -> float:
    """Average the gradients of a rank's own sequences in one way, twice; return the error against one process."""
    given = sequences(member.world_size).to(member.device)
    model = TinyModel().to(member.device)
    right = whole_batch(TinyModel().to(member.device), given)
    after: Callable[[], None]
    running: nn.Module = model
    if name == "ddp":
        running, after = DistributedDataParallel(model), lambda: None
    elif name.startswith("buckets"):
        size = int(name.split()[1])
        after = Buckets(model, bucket_bytes=size, by_copies=name.endswith("by copies")).wait
    else:
        ways = {
            "each": average_each,
            "at once": lambda parameters: average_each(parameters, at_once=True),
            "flat": average_flat,
            "coalesced": average_coalesced,
        }
        after = lambda: ways[name](model.parameters())  # noqa: E731
    errors = []
    for _ in range(steps):
        model.zero_grad(set_to_none=True)
        own = given[member.rank]
        running(own[:, :-1], own[:, 1:]).backward()
        after()
        errors.append(error(model, right))
    return max(errors)


def in_micro_batches(member: Member) -> tuple[float, float]:
    """Add up two micro-batches in buckets, the first without sums; return the error, and that of a gradient kept."""
    given = sequences(member.world_size, of_each=4).to(member.device)
    model = TinyModel().to(member.device)
    right = whole_batch(TinyModel().to(member.device), given)
    buckets = Buckets(model, bucket_bytes=300)
    first, last = given[member.rank].split(2)
    with buckets.no_sync():
        (model(first[:, :-1], first[:, 1:]) / 2).backward()
    alone = [each.grad for each in model.parameters()]
    dist.barrier()
    assert all(each is not None for each in alone)
    (model(last[:, :-1], last[:, 1:]) / 2).backward()
    buckets.wait()
    found = error(model, right)
    model.zero_grad(set_to_none=False)
    own = given[member.rank]
    model(own[:, :-1], own[:, 1:]).backward()
    buckets.wait()
    return found, error(model, right)


def gathered_rows(member: Member, dtype_name: str | None = None) -> tuple[float, list[float]]:
    """Gather the rows of a tied embedding, over two micro-batches; return the error, and the sum of each gradient."""
    given = sequences(member.world_size, of_each=4).to(member.device)
    right = whole_batch(TinyModel().to(member.device), given)
    model = TinyModel().to(member.device)
    model.embedding = GatheredEmbedding(model.embedding)  # type: ignore[assignment]
    buckets = Buckets(model, bucket_bytes=1, dtype=getattr(torch, dtype_name) if dtype_name else None)
    for is_last, own in zip((False, True), given[member.rank].split(2), strict=True):
        with buckets.synchronised(is_last):
            (model(own[:, :-1], own[:, 1:]) / 2).backward()
    gradients = [each.grad for each in model.parameters()]
    return error(model, right), [float(each.sum()) for each in gradients]  # type: ignore[union-attr]


def unequal_tokens(member: Member, counts: list[int], masked: bool = False) -> tuple[float, float, float, float]:
    """Give ranks unequally many sequences, or as many with some masked.

    Return the errors of gradients with means of each rank's own tokens and with sums over :func:`tokens_per_rank`, and
    the mean of the ranks' losses, and the loss of one process.
    """
    given = sequences(1, sum(counts)).to(member.device)
    own = given[0].split(counts)[member.rank]
    targets = own[:, 1:]
    if masked:  # a sequence more on each rank, none of whose targets count
        own = torch.cat([given[0, :1], own])
        targets = torch.cat([torch.full_like(given[0, :1, 1:], -100), targets])
    one_process = TinyModel().to(member.device)
    right = whole_batch(one_process, given)
    whole = one_process(given[0][:, :-1], given[0][:, 1:])
    errors = []
    for reduction in ("mean", "sum"):
        model = TinyModel(reduction=reduction).to(member.device)
        buckets = Buckets(model)
        loss = model(own[:, :-1], targets)
        if reduction == "sum":
            loss = loss / tokens_per_rank((targets != -100).sum())
        loss.backward()
        buckets.wait()
        errors.append(error(model, right))
    mean = loss.detach().clone()
    dist.all_reduce(mean, op=dist.ReduceOp.AVG)
    return errors[0], errors[1], float(mean), float(whole)


def no_tokens_at_all(member: Member) -> float:
    """Divide a sum of no losses where no rank has a token."""
    return float(torch.zeros((), device=member.device) / tokens_per_rank(0))


def lying_otherwise(member: Member, name: str) -> list[list[float]]:
    """Average a gradient that lies transposed in the memory of rank 0."""
    values = torch.tensor([[1.0, 2.0], [3.0, 4.0]], device=member.device)
    weight = nn.Parameter(torch.zeros_like(values))
    weight.grad = values.T.contiguous().T if member.rank == 0 else values
    {"each": average_each, "flat": average_flat, "coalesced": average_coalesced}[name]([weight])
    return weight.grad.tolist()


def copied_exactly(member: Member, dtype_name: str, steps: int = 3) -> bool:
    """Average whole numbers by copies, in messages with fewer numbers than ranks too; are they right, bit by bit?"""
    right, found = [], []
    for step in range(steps):
        layers = [nn.Linear(3, 11, bias=False), nn.Linear(7, 1)]
        model = nn.Sequential(*layers).to(member.device, getattr(torch, dtype_name))
        buckets = Buckets(model, bucket_bytes=1, by_copies=True)
        for number, each in enumerate(model.parameters()):
            given = [
                torch.randint(-8, 8, each.shape, generator=torch.Generator().manual_seed(50 * step + 9 * rank + number))
                for rank in range(member.world_size)
            ]
            each.grad = (given[member.rank] * member.world_size).to(each)
            right.append(torch.stack(given).sum(dim=0).to(each))
        buckets.wait()
        found += [each.grad for each in model.parameters()]
    return all(torch.equal(one, other) for one, other in zip(found, right, strict=True))  # type: ignore[arg-type]


def unused_on_some(member: Member, dtype_name: str | None = None) -> tuple[float, list[str]]:
    """Let the last rank leave a layer out; return the error against the mean of what each rank has, and the names."""
    given = sequences(member.world_size).to(member.device)
    right = []
    for rank in range(member.world_size):
        model = TinyModel(skips=rank == member.world_size - 1).to(member.device)
        right.append(whole_batch(model, given[rank : rank + 1]))
    means = [torch.stack(each).mean(dim=0) for each in zip(*right, strict=True)]
    model = TinyModel(skips=member.rank == member.world_size - 1).to(member.device)
    buckets = Buckets(model, bucket_bytes=1, dtype=getattr(torch, dtype_name) if dtype_name else None)
    own = given[member.rank]
    model(own[:, :-1], own[:, 1:]).backward()
    buckets.wait()
    return error(model, means), buckets.unused


def exact_in_bf16(member: Member) -> bool:
    """Add up whole numbers in buckets of bf16, whose sums and means bf16 holds."""
    layer = nn.Linear(64, 32, bias=False).to(member.device)
    buckets = Buckets(layer, dtype=torch.bfloat16)
    inputs = [
        torch.randint(-8, 8, (1, 64), generator=torch.Generator().manual_seed(rank)).float().to(member.device)
        for rank in range(member.world_size)
    ]
    layer(inputs[member.rank] * member.world_size).sum().backward()
    buckets.wait()
    return torch.equal(layer.weight.grad, torch.cat(inputs).sum(dim=0).expand(32, 64))  # type: ignore[arg-type]


def bytes_in_order(member: Member) -> list[int]:
    """Return the sizes of the messages of a step in buckets, in the order in which they began."""
    sent: list[int] = []
    send = dist.all_reduce
    model = TinyModel()
    buckets = Buckets(model, bucket_bytes=300)

    def noted(values: torch.Tensor, *given: object, **more: object) -> object:
        sent.append(values.nbytes)
        return send(values, *given, **more)  # type: ignore[arg-type]

    dist.all_reduce = noted  # type: ignore[assignment]
    try:
        own = sequences(1)[0]
        model(own[:, :-1], own[:, 1:]).backward()
        sent.append(-1)  # here the backward pass has ended
        buckets.wait()
    finally:
        dist.all_reduce = send
    return sent


def twice_without_wait(member: Member) -> None:
    model = TinyModel()
    buckets = Buckets(model)
    own = sequences(1)[0]
    for _ in range(2):
        model(own[:, :-1], own[:, 1:]).backward()
    buckets.wait()


def without_backward(member: Member) -> None:
    Buckets(TinyModel()).wait()


def without_a_gradient(member: Member) -> None:
    average_each(TinyModel().parameters())


def nothing_to_train(member: Member) -> None:
    Buckets(TinyModel().requires_grad_(False))


def not_of_the_module(member: Member) -> None:
    Buckets(TinyModel(), first=[nn.Parameter(torch.zeros(3))])


def other_order(member: Member) -> None:
    model = TinyModel()
    Buckets(model, first=[model.embedding.weight] if member.rank else [])


def other_buckets(member: Member) -> None:
    Buckets(TinyModel(), bucket_bytes=300 if member.rank else 10**6)


def rows_twice(member: Member) -> None:
    model = TinyModel()
    model.embedding = lookup = GatheredEmbedding(model.embedding)  # type: ignore[assignment]
    buckets = Buckets(model)
    own = sequences(1)[0]
    model(own[:, :-1], own[:, 1:]).backward()
    buckets.wait()
    lookup.add_rows()


def padded_rows(member: Member) -> None:
    GatheredEmbedding(nn.Embedding(4, 2, padding_idx=0))


def frozen_rows(member: Member) -> None:
    GatheredEmbedding(nn.Embedding(4, 2).requires_grad_(False))


def empty_buckets(member: Member) -> None:
    Buckets(TinyModel(), bucket_bytes=0)


def alone(member: Member) -> bool:
    """Do everything with one rank: gradients and values stay what they were."""
    given = sequences(1)
    model = TinyModel()
    right = whole_batch(TinyModel(), given)
    buckets = Buckets(model)
    model(given[0][:, :-1], given[0][:, 1:]).backward()
    buckets.wait()
    average_flat(model.parameters())
    average_each(model.parameters())
    return error(model, right) == 0 and float(tokens_per_rank(7)) == 7 and float(ring_all_reduce(torch.ones(1))) == 1


def disagree(member: Member, difference: str) -> None:
    """Let rank 1 have other tensors."""
    tensors = {"a": torch.zeros(4), "b": torch.zeros(2, 3)}
    if member.rank == 1:
        tensors = {
            "shape": {"a": torch.zeros(4), "b": torch.zeros(3, 2)},
            "order": {"b": torch.zeros(2, 3), "a": torch.zeros(4)},
            "format": {"a": torch.zeros(4).bfloat16(), "b": torch.zeros(2, 3)},
            "number": {"a": torch.zeros(4)},
        }[difference]
    require_agreement(tensors)


def agree(member: Member) -> None:
    require_agreement({"a": torch.zeros(4), "b": torch.zeros(2, 3)})


def die_before_a_sum(member: Member) -> None:
    if member.rank == 1:
        os._exit(7)
    average_each([nn.Parameter(torch.zeros(3), requires_grad=False)])
    time.sleep(1000)


def ring_sum(member: Member, numbers: int, rings: int, dtype_name: str) -> bool:
    """Compare the ring with the sum that one process computes; whole numbers, so that no order matters."""
    dtype = getattr(torch, dtype_name)
    own = [((torch.arange(numbers) * (rank + 3)) % 31 - 15).to(dtype) for rank in range(member.world_size)]
    right = torch.stack([each.double() for each in own]).sum(dim=0).to(dtype)
    values = own[member.rank].to(member.device)
    found = ring_all_reduce(values, rings=rings)
    return found is values and torch.equal(values.cpu(), right)


def scattered_ring(member: Member) -> None:
    ring_all_reduce(torch.zeros(4, 4).T[:2].T)


def by_torch(member: Member, name: str, parts: list[list[float]]) -> list[float]:
    """Do a collective by torch.distributed."""
    own = torch.tensor(parts[member.rank])
    if name == "broadcast":
        dist.broadcast(own, 0)
    elif name == "reduce":
        total = own.clone()
        dist.reduce(total, 0)
        own = total if member.rank == 0 else own
    elif name == "all-reduce":
        dist.all_reduce(own)
    elif name == "all-gather":
        gathered = [torch.empty_like(own) for _ in range(member.world_size)]
        dist.all_gather(gathered, own)
        own = torch.cat(gathered)
    elif name == "reduce-scatter":
        pieces = list(own.chunk(member.world_size))
        own = torch.empty_like(pieces[0])
        dist.reduce_scatter(own, pieces)
    elif name == "all-to-all":
        received = torch.empty_like(own)
        dist.all_to_all_single(received, own)
        own = received
    return own.tolist()
