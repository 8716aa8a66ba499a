"""Attention of one new token of each sequence to all keys and values in the cache: what a decode step does in a layer.

Every key and value is read once and used by few queries, so bandwidth is the limit, and the question is whether a GPU
has enough to do: one sequence has as few heads as a model. Inputs come from memory, since in a model the weights pass
between one layer's cache and the next. ``gpuguide`` and ``flashinfer`` read the cache in pages, the others need each
head's keys side by side. The host's launches do not count: calls are replayed in a CUDA graph, as a loop does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from gpuguide.benchmarks.inference import exact
from gpuguide.benchmarks.inference.models import number, share_object
from gpuguide.benchmarks.inputs import count_input_sets
from gpuguide.hardware.device import Device
from gpuguide.inference import PAGE
from gpuguide.measure.benchmark import Benchmark, Contender, Keys, Work
from gpuguide.measure.records import Rate

HEAD_DIM = 128
HEADS = 32
KV_HEADS = (32, 8)
"""Heads of keys and values: as many as of queries, as in the 7B shape, and a quarter"""
CONTEXTS = {1: (128, 2048, 16384), 8: (128, 2048, 16384), 64: (128, 2048)}
"""Keys and values of each sequence, by how many sequences there are"""
ELEMENT_SIZE = 2
"""Bytes of a number in bf16"""
ACCEPTED_ERROR = 1e-2
"""Largest accepted error against fp32, as a ratio of norms"""
WORKSPACE = 128 * 2**20
"""Bytes that FlashInfer is given for parts of results, as its documents advise"""

Attend = Callable[[int], torch.Tensor]
"""Attends to one set of keys and values, by its number: returns ``(batch, heads, head_dim)``"""


@dataclass(frozen=True)
class CachedAttentionProblem:
    """Queries, and several sets of keys and values, so that none is still in the L2 cache when its turn comes."""

    queries: torch.Tensor
    """``(batch, heads, head_dim)``"""
    keys: torch.Tensor
    """``(sets, batch, kv_heads, context, head_dim)``, or in pages: ``(sets, pages, kv_heads, PAGE, head_dim)``"""
    values: torch.Tensor
    """Values, of the shape of ``keys``"""
    paged: bool

    @classmethod
    def draw(cls, keys: Keys, device: Device, *, paged: bool) -> CachedAttentionProblem:
        """Draw one from N(0, 1). In pages, those of a sequence follow one another."""
        batch, kv_heads, context = number(keys, "batch"), number(keys, "kv_heads"), number(keys, "context")
        head_dim = number(keys, "head_dim")
        sets = count_input_sets(cache_bytes(keys), device)
        pages = batch * context // PAGE
        shape = (sets, pages, kv_heads, PAGE, head_dim) if paged else (sets, batch, kv_heads, context, head_dim)

        def draw(*size: int) -> torch.Tensor:
            return torch.randn(size, dtype=torch.bfloat16, device=device.torch_device)

        return cls(draw(batch, number(keys, "heads"), head_dim), draw(*shape), draw(*shape), paged)

    @property
    def sets(self) -> int:
        """Number of sets of keys and values."""
        return len(self.keys)

    def select_sequence(self, kept: torch.Tensor, row: int) -> torch.Tensor:
        """Return a sequence's keys or values in the first set: ``(kv_heads, context, head_dim)``."""
        if not self.paged:
            return kept[0, row]
        pages = kept[0].unflatten(0, (len(self.queries), -1))[row]
        return pages.transpose(0, 1).flatten(1, 2)

    def exact(self, row: int) -> torch.Tensor:
        """Return what a sequence's queries read from the first set, in fp32: ``(heads, head_dim)``."""
        keys, values = (self.select_sequence(kept, row).float() for kept in (self.keys, self.values))
        queries = self.queries[row].float().unflatten(0, (len(keys), -1))  # (kv_heads, group, head_dim)
        weights = torch.softmax(queries @ keys.mT * keys.shape[-1] ** -0.5, dim=-1)
        return (weights @ values).flatten(0, 1)


def cache_bytes(keys: Keys) -> int:
    """Return the bytes of keys and values that a call reads."""
    numbers = number(keys, "batch") * number(keys, "kv_heads") * number(keys, "context") * number(keys, "head_dim")
    return 2 * ELEMENT_SIZE * numbers


# --- contenders ------------------------------------------------------------------------------------------


def ours(problem: CachedAttentionProblem, keys: Keys) -> Attend:
    """Return our kernel, which finds a sequence's pages in a table."""
    from gpuguide.inference.fused.attention import CacheAttention

    batch, heads, head_dim = problem.queries.shape
    context = number(keys, "context")
    device = problem.queries.device
    table = torch.arange(batch * context // PAGE, dtype=torch.int32, device=device).view(batch, -1)
    rows = torch.arange(batch, device=device)
    last = torch.full((batch,), context - 1, device=device)
    attention = CacheAttention(batch, heads, number(keys, "kv_heads"), head_dim, context, problem.keys)
    out = torch.empty_like(problem.queries)
    return lambda place: attention(problem.queries, problem.keys[place], problem.values[place], table, rows, last, out)


def library(backend: str) -> Callable[[CachedAttentionProblem, Keys], Attend]:
    """Return a maker of PyTorch's attention with one of its backends and no other."""

    def make(problem: CachedAttentionProblem, keys: Keys) -> Attend:
        from torch.nn.attention import SDPBackend, sdpa_kernel

        only, grouped = getattr(SDPBackend, backend), is_grouped(keys)
        queries = problem.queries.unsqueeze(2)

        def attend(place: int) -> torch.Tensor:
            with sdpa_kernel([only]):
                kept = (problem.keys[place], problem.values[place])
                return functional.scaled_dot_product_attention(queries, *kept, enable_gqa=grouped).squeeze(2)

        return attend

    return make


def fa3(problem: CachedAttentionProblem, keys: Keys) -> Attend:
    """Return FlashAttention-3's attention to a cache, which chooses itself in how many parts it reads it.

    Source: https://github.com/Dao-AILab/flash-attention, ``hopper``, in the package fa3-fwd, which has no pages.
    """
    from fa3_fwd_interface import flash_attn_with_kvcache

    queries = problem.queries.unsqueeze(1)
    lengths = torch.full((len(queries),), number(keys, "context"), dtype=torch.int32, device=queries.device)

    def attend(place: int) -> torch.Tensor:
        kept = (problem.keys[place].transpose(1, 2), problem.values[place].transpose(1, 2))
        out: torch.Tensor = flash_attn_with_kvcache(queries, *kept, cache_seqlens=lengths)
        return out.squeeze(1)

    return attend


def flashinfer(problem: CachedAttentionProblem, keys: Keys) -> Attend:
    """Return FlashInfer's attention to pages, planned once for lengths that do not change.

    Source: https://docs.flashinfer.ai/api/attention.html, ``BatchDecodeWithPagedKVCacheWrapper``.
    """
    from flashinfer.decode import BatchDecodeWithPagedKVCacheWrapper

    batch, heads, head_dim = problem.queries.shape
    device, each = problem.queries.device, number(keys, "context") // PAGE
    starts = each * torch.arange(batch + 1, dtype=torch.int32, device=device)
    pages = torch.arange(batch * each, dtype=torch.int32, device=device)
    full = torch.full((batch,), PAGE, dtype=torch.int32, device=device)
    wrapper = BatchDecodeWithPagedKVCacheWrapper(
        torch.empty(WORKSPACE, dtype=torch.uint8, device=device),
        "HND",
        use_cuda_graph=True,
        use_tensor_cores=is_grouped(keys),
        paged_kv_indptr_buffer=starts.clone(),
        paged_kv_indices_buffer=pages.clone(),
        paged_kv_last_page_len_buffer=full.clone(),
    )
    wrapper.plan(
        starts, pages, full, heads, number(keys, "kv_heads"), head_dim, PAGE,
        q_data_type=torch.bfloat16, kv_data_type=torch.bfloat16,
    )  # fmt: skip
    return lambda place: wrapper.run(problem.queries, (problem.keys[place], problem.values[place]))


def is_grouped(keys: Keys) -> bool:
    """Return whether several heads of queries share one of keys."""
    return keys["heads"] != keys["kv_heads"]


def not_grouped(device: Device, keys: Keys) -> str | None:
    """Return the reason to skip heads that share keys, or None."""
    return "this backend has no grouped-query attention" if is_grouped(keys) else None


# --- work ------------------------------------------------------------------------------------------------


def work(make: Callable[[CachedAttentionProblem, Keys], Attend], device: Device, keys: Keys, *, paged: bool) -> Work:
    """Attend to each set of keys and values in its turn."""
    moved = cache_bytes(keys)
    rates = {"bandwidth": Rate("B/s", moved)}
    key = ("cached attention", paged, device.torch_device, *keys.values())
    problem: CachedAttentionProblem = share_object(key, lambda: CachedAttentionProblem.draw(keys, device, paged=paged))
    attend = make(problem, keys)

    def call_on(place: int) -> Callable[[], torch.Tensor]:
        return lambda: attend(place)

    calls = [call_on(place) for place in range(problem.sets)]
    return Work(calls, lambda: check(calls[0](), problem), rates, "graph", moved)


def check(found: torch.Tensor, problem: CachedAttentionProblem) -> None:
    """Check what the first and the last sequence read against fp32."""
    for row in {0, len(found) - 1}:
        error = exact.relative_error(found[row], problem.exact(row))
        assert error <= ACCEPTED_ERROR, (
            f"the relative error is {error:.1e}, and at most {ACCEPTED_ERROR:.0e} is accepted"
        )


def contender(
    make: Callable[[CachedAttentionProblem, Keys], Attend],
    skip_reason: Callable[[Device, Keys], str | None] = lambda device, keys: None,
    *libraries: str,
    paged: bool = False,
    needs: str = "bf16",
) -> Contender:
    """Return a maker of attention as a contender."""
    return Contender(
        lambda device, keys: work(make, device, keys, paged=paged), frozenset({"gpu", "bf16", needs}), skip_reason,
        libraries,
    )  # fmt: skip


def cases(device: Device) -> Sequence[Keys]:
    """Return few and many sequences, short and long, with and without shared keys; on a CPU none."""
    if not device.is_gpu:
        return []
    return [
        {"batch": batch, "heads": HEADS, "kv_heads": kv_heads, "head_dim": HEAD_DIM, "context": context}
        for batch, contexts in CONTEXTS.items()
        for kv_heads in KV_HEADS
        for context in contexts
    ]


def bytes_needed(keys: Keys) -> float:
    """Return roughly what a case takes: keys and values twice, in pages and not, and some of them in fp32."""
    whole = cache_bytes(keys)
    return 2 * (whole + 2**28) + 12 * whole / number(keys, "batch") + WORKSPACE + 2**28


def anything(device: Device, keys: Keys) -> str | None:
    """Leave nothing out."""
    return None


DECODE_ATTENTION = Benchmark(
    name="decode-attention",
    title="Attention of one token to a cache",
    question="How fast are keys and values read, from one short sequence to many long ones?",
    contenders={
        "gpuguide": contender(ours, paged=True),
        "sdpa-flash": contender(library("FLASH_ATTENTION"), needs="flash-attention"),
        "sdpa-cudnn": contender(library("CUDNN_ATTENTION"), anything, "cudnn", needs="flash-attention"),
        "sdpa-efficient": contender(library("EFFICIENT_ATTENTION"), not_grouped),
        "fa3": contender(fa3, anything, "fa3-fwd", needs="flash-attention"),
        "flashinfer": contender(flashinfer, anything, "flashinfer", paged=True),
    },
    cases=cases,
    memory=bytes_needed,
    budget=0.1,
)
