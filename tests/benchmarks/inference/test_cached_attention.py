from __future__ import annotations

import sys
from dataclasses import replace
from types import SimpleNamespace

import interpreted
import pytest
import torch

from gpuguide.benchmarks.inference import cached_attention
from gpuguide.benchmarks.inference.cached_attention import CachedAttentionProblem
from gpuguide.hardware import device as devices
from gpuguide.measure import benchmark as declarations
from gpuguide.measure import runner
from gpuguide.measure.benchmark import Keys, too_large

ATTENTION = declarations.get("decode-attention")
SMALL: Keys = {"batch": 3, "heads": 4, "kv_heads": 4, "head_dim": 16, "context": 192}
GROUPED: Keys = {**SMALL, "kv_heads": 2}
each_grouping = pytest.mark.parametrize("keys", [SMALL, GROUPED], ids=["own keys", "grouped"])


def in_float64(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Return attention by the formula: ``(batch, heads, head_dim)`` and ``(batch, kv_heads, context, head_dim)``."""
    group = queries.shape[1] // keys.shape[1]
    keys, values = (part.double().repeat_interleave(group, dim=1) for part in (keys, values))
    scores = torch.einsum("bhd,bhcd->bhc", queries.double(), keys) / queries.shape[-1] ** 0.5
    return torch.einsum("bhc,bhcd->bhd", torch.softmax(scores, dim=-1), values)


def test_heads_that_share_keys_are_left_out_by_one_backend() -> None:
    device = devices.fake("h100-sxm")
    skip_reason = ATTENTION.contenders["sdpa-efficient"].skip_reason
    assert skip_reason(device, GROUPED) == "this backend has no grouped-query attention"
    assert skip_reason(device, SMALL) is None


def test_the_largest_cases_need_more_than_a_small_card() -> None:
    def skipped(gigabytes: int) -> int:
        device = replace(devices.fake("h100-sxm"), memory=gigabytes * 10**9)
        return sum(too_large(ATTENTION, keys, device) is not None for keys in ATTENTION.cases(device))

    assert skipped(8) > 0
    assert skipped(16) == 0


def test_bytes_are_those_of_keys_and_values() -> None:
    problem = CachedAttentionProblem.draw(GROUPED, devices.cpu(), paged=True)
    assert cached_attention.cache_bytes(GROUPED) == problem.keys[0].nbytes + problem.values[0].nbytes


def test_inputs_that_would_stay_in_the_cache_are_many() -> None:
    device = replace(devices.cpu(), l2=1_000_000)
    problem = CachedAttentionProblem.draw(SMALL, device, paged=False)
    assert problem.sets * cached_attention.cache_bytes(SMALL) >= 2 * device.l2
    work = cached_attention.work(cached_attention.library("MATH"), device, SMALL, paged=False)
    assert len(work.calls) == problem.sets
    assert (work.timing, work.footprint) == ("graph", cached_attention.cache_bytes(SMALL))


def fa3(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, cache_seqlens: torch.Tensor) -> torch.Tensor:
    """Stand in for FlashAttention-3, whose tensors are (batch, length, heads, head_dim)."""
    assert cache_seqlens.tolist() == len(queries) * [keys.shape[1]]
    out = in_float64(queries[:, 0], keys.transpose(1, 2), values.transpose(1, 2))
    return out.to(queries.dtype).unsqueeze(1)


@each_grouping
def test_flash_attention_3_is_given_its_order_of_axes(keys: Keys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fa3_fwd_interface", SimpleNamespace(flash_attn_with_kvcache=fa3))
    work = cached_attention.work(cached_attention.fa3, devices.cpu(), keys, paged=False)
    assert work.check is not None
    work.check()


@each_grouping
@pytest.mark.parametrize("paged", [False, True])
def test_the_reference_agrees_with_the_formula_in_float64(keys: Keys, paged: bool) -> None:
    torch.manual_seed(0)
    problem = CachedAttentionProblem.draw(keys, devices.cpu(), paged=paged)
    kept = problem.keys[0], problem.values[0]
    if paged:
        kept = tuple(pages.view(3, 3, -1, 64, 16).transpose(1, 2).flatten(2, 3) for pages in kept)
    wanted = in_float64(problem.queries, *kept)
    for row in range(3):
        torch.testing.assert_close(problem.exact(row).double(), wanted[row], rtol=1e-5, atol=1e-5)


@each_grouping
def test_pytorchs_attention_passes(keys: Keys) -> None:
    work = cached_attention.work(cached_attention.library("MATH"), devices.cpu(), keys, paged=False)
    assert work.check is not None
    work.check()


def test_what_is_wrong_is_found() -> None:
    problem = CachedAttentionProblem.draw(SMALL, devices.cpu(), paged=False)
    right = torch.stack([problem.exact(row) for row in range(3)])
    cached_attention.check(right.bfloat16(), problem)
    for wrong in (right * 1.02, right.roll(1, 0), right.roll(1, 1)):
        with pytest.raises(AssertionError, match="the relative error is"):
            cached_attention.check(wrong, problem)


def test_contenders_of_a_kind_share_keys_and_values() -> None:
    first = cached_attention.work(cached_attention.library("MATH"), devices.cpu(), SMALL, paged=False)
    torch.manual_seed(1)
    again = cached_attention.work(cached_attention.library("MATH"), devices.cpu(), SMALL, paged=False)
    assert torch.equal(first.calls[0](), again.calls[0]())  # type: ignore[arg-type]


def compare_our_kernel(kv_heads: int) -> None:
    """Compare with the reference, in fp32, which is what the interpreter multiplies in."""
    torch.manual_seed(0)
    keys = {**SMALL, "kv_heads": kv_heads}
    drawn = CachedAttentionProblem.draw(keys, devices.cpu(), paged=True)
    problem = CachedAttentionProblem(drawn.queries.float(), drawn.keys.float(), drawn.values.float(), True)
    attend = cached_attention.ours(problem, keys)
    for _ in range(2):
        cached_attention.check(attend(0), problem)


@interpreted.needs_triton
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_our_kernel_passes(kv_heads: int) -> None:
    interpreted.run(__file__, f"compare_our_kernel({kv_heads})")


@pytest.mark.gpu
@each_grouping
def test_every_contender_is_right_and_can_be_captured(keys: Keys) -> None:
    for case in runner.measure_case(ATTENTION, {**keys, "head_dim": 128}, devices.current(), quick=True):
        assert case.status in ("ok", "skipped"), case
