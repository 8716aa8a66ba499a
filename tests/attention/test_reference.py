"""The plain attention against PyTorch's and its autograd, and what is promised of rows that see nothing."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from gpuguide.attention import reference

Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def inputs(queries: int, keys: int, heads: int = 4, kv_heads: int = 2, dtype: torch.dtype = torch.float64) -> Tensors:
    generator = torch.Generator().manual_seed(queries * 1000 + keys)
    shapes = ((2, heads, queries, 5), (2, kv_heads, keys, 5), (2, kv_heads, keys, 5))
    q, k, v = (torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes)
    return q.requires_grad_(), k.requires_grad_(), v.requires_grad_()


def of_pytorch(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
    return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)


def bottom_right(queries: int, keys: int) -> torch.Tensor:
    """The causal mask from its definition, pair by pair."""
    return torch.tensor([[j <= i + keys - queries for j in range(keys)] for i in range(queries)]).reshape(queries, keys)


def check_gradients(
    output: torch.Tensor, explicit: reference.AttentionGradients, given_: Tensors, d_out: torch.Tensor
) -> None:
    for ours, exact in zip(explicit, torch.autograd.grad(output, given_, d_out), strict=True):
        torch.testing.assert_close(ours, exact)


@given(
    st.integers(1, 9), st.integers(1, 9), st.sampled_from([(1, 1), (4, 2), (6, 1)]), st.sampled_from([None, 0.0, -2.0])
)
def test_output_and_gradients_are_those_of_pytorch(
    queries: int, keys: int, heads: tuple[int, int], scale: float | None
) -> None:
    tensors = inputs(queries, keys, *heads)
    expected = functional.scaled_dot_product_attention(*tensors, scale=scale, enable_gqa=True)
    found = reference.attention(*tensors, scale=scale)
    torch.testing.assert_close(found, expected)
    d_out = torch.randn_like(found)
    check_gradients(expected, reference.gradients(*tensors, d_out, scale=scale), tensors, d_out)


@pytest.mark.parametrize(("queries", "keys"), [(7, 7), (3, 8), (1, 6), (8, 3)])
def test_causal_is_aligned_to_the_last_query_and_the_last_key(queries: int, keys: int) -> None:
    tensors = inputs(queries, keys)
    seen = bottom_right(queries, keys)
    assert torch.equal(reference.causal_mask(queries, keys), seen)
    found = reference.attention(*tensors, causal=True)
    torch.testing.assert_close(found, reference.attention(*tensors, mask=seen))
    rows = seen.any(dim=-1)
    torch.testing.assert_close(found[:, :, rows], of_pytorch(tensors[0][:, :, rows], *tensors[1:], seen[rows]))
    d_out = torch.randn_like(found)
    check_gradients(found, reference.gradients(*tensors, d_out, causal=True), tensors, d_out)


@pytest.mark.parametrize("boolean", [True, False])
def test_masks_hide_or_add(boolean: bool) -> None:
    tensors = inputs(6, 7)
    mask = torch.rand(2, 1, 6, 7, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    mask = mask < 0.7 if boolean else mask.masked_fill(mask > 0.7, -torch.inf)
    found = reference.attention(*tensors, mask=mask)
    torch.testing.assert_close(found, of_pytorch(*tensors, mask))
    d_out = torch.randn_like(found)
    check_gradients(found, reference.gradients(*tensors, d_out, mask=mask), tensors, d_out)


def test_a_query_that_sees_no_key_gets_zeros_and_gives_none() -> None:
    tensors = inputs(5, 3)
    output, log_sum_exp = reference.attention_with_log_sum_exp(*tensors, causal=True)
    assert bool((output[:, :, :2] == 0).all())
    assert bool((log_sum_exp[:, :, :2] == -torch.inf).all())
    assert bool(log_sum_exp[:, :, 2:].isfinite().all())
    d_out = torch.randn_like(output)
    of_formulas = reference.gradients(*tensors, d_out, causal=True)
    for found in (of_formulas, torch.autograd.grad(output, tensors, d_out)):
        assert all(bool(gradient.isfinite().all()) for gradient in found)
        assert bool((found[0][:, :, :2] == 0).all())


def test_without_keys_all_is_zero() -> None:
    tensors = inputs(3, 0)
    output, log_sum_exp = reference.attention_with_log_sum_exp(*tensors)
    assert bool((output == 0).all())
    assert bool((log_sum_exp == -torch.inf).all())
    assert reference.gradients(*tensors, torch.ones_like(output)).keys.shape == tensors[1].shape


def test_the_log_sum_exp_is_that_of_the_scaled_scores() -> None:
    q, k, v = inputs(4, 6, heads=2, kv_heads=2)
    found = reference.attention_with_log_sum_exp(q, k, v).log_sum_exp
    torch.testing.assert_close(found, torch.exp(q @ k.mT / math.sqrt(5)).sum(dim=-1).log())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_formats(dtype: torch.dtype) -> None:
    tensors = inputs(7, 9, dtype=dtype)
    output, log_sum_exp = reference.attention_with_log_sum_exp(*tensors)
    assert (output.dtype, log_sum_exp.dtype) == (dtype, torch.float32)
    exact = reference.attention(*(tensor.double() for tensor in tensors))
    torch.testing.assert_close(output, exact.to(dtype), rtol=1e-2 if dtype != torch.float32 else 1e-5, atol=1e-6)
    found = reference.gradients(*tensors, torch.ones_like(output))
    assert [gradient.dtype for gradient in found] == [dtype] * 3


@pytest.mark.parametrize("large", [1e4, -1e4])
def test_large_scores(large: float) -> None:
    q, k, v = inputs(5, 6)
    with torch.no_grad():
        q[:] = large
        k[:] = 1 + k / 1000
    output, log_sum_exp = reference.attention_with_log_sum_exp(q, k, v)
    torch.testing.assert_close(output, of_pytorch(q, k, v))
    assert bool(log_sum_exp.isfinite().all())


def test_naive_attention_is_the_same_where_every_query_sees_a_key() -> None:
    for causal, queries, keys in ((False, 6, 9), (True, 6, 9), (True, 1, 5)):
        tensors = inputs(queries, keys)
        found = reference.naive_attention(*tensors, causal=causal)
        torch.testing.assert_close(found, reference.attention(*tensors, causal=causal))
    assert bool(reference.naive_attention(*inputs(4, 2), causal=True)[:, :, :2].isnan().all())
    assert reference.naive_attention(*inputs(4, 4, dtype=torch.bfloat16)).dtype == torch.bfloat16
