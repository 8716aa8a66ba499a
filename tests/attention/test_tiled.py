"""Attention a tile at a time against the plain one, and its counted bytes against the formulas."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpuguide.attention import cost, reference, tiled
from gpuguide.attention.tiled import TileTraffic

Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def inputs(
    queries: int, keys: int, heads: tuple[int, int] = (4, 2), dtype: torch.dtype = torch.float64, size: float = 1.0
) -> Tensors:
    generator = torch.Generator().manual_seed(queries * 1000 + keys)
    shapes = [(2, heads[0], queries, 8), (2, heads[1], keys, 8), (2, heads[1], keys, 8)]
    q, k, v = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    return (q * size).to(dtype), k.to(dtype), v.to(dtype)


def compare(tensors: Tensors, *, causal: bool, block_q: int, block_k: int, scale: float | None = None) -> None:
    """Compare results and gradients with the plain ones, and both counts with the formulas."""
    forward, backward, given_ = TileTraffic(), TileTraffic(), {"causal": causal, "scale": scale}
    blocks = {"block_q": block_q, "block_k": block_k}
    result = tiled.forward(*tensors, **given_, **blocks, traffic=forward)
    expected = reference.attention_with_log_sum_exp(*tensors, **given_)
    torch.testing.assert_close(result.output, expected.output)
    torch.testing.assert_close(result.log_sum_exp, expected.log_sum_exp)

    d_out = torch.randn(result.output.shape, generator=torch.Generator().manual_seed(1)).to(result.output.dtype)
    gradients = tiled.backward(*tensors, result, d_out, **given_, **blocks, traffic=backward)
    for ours, exact in zip(gradients, reference.gradients(*tensors, d_out, **given_), strict=True):
        torch.testing.assert_close(ours, exact)

    problem = cost.problem_from_tensors(*tensors[:2], causal=causal)
    assert forward == cost.tiled_forward(problem, block_q, block_k)
    assert backward == cost.tiled_backward(problem, block_q, block_k)


@given(
    queries=st.integers(1, 25),
    keys=st.integers(1, 25),
    heads=st.sampled_from([(1, 1), (4, 2), (3, 1)]),
    causal=st.booleans(),
    block_q=st.integers(1, 30),
    block_k=st.integers(1, 30),
)
def test_results_gradients_and_bytes(
    queries: int, keys: int, heads: tuple[int, int], causal: bool, block_q: int, block_k: int
) -> None:
    compare(inputs(queries, keys, heads), causal=causal, block_q=block_q, block_k=block_k)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("queries", "keys"), [(129, 129), (1, 100), (100, 1), (65, 200), (200, 65)])
def test_with_the_usual_blocks(queries: int, keys: int, causal: bool) -> None:
    compare(inputs(queries, keys), causal=causal, block_q=64, block_k=64)


@pytest.mark.parametrize("size", [1e4, -1e4, 1e-4])
def test_large_and_small_scores(size: float) -> None:
    compare(inputs(50, 60, size=size), causal=True, block_q=16, block_k=8)


def test_another_scale() -> None:
    compare(inputs(50, 60), causal=True, block_q=16, block_k=8, scale=-3.0)


def test_strided_inputs() -> None:
    strided = [tensor.transpose(1, 2).contiguous().transpose(1, 2) for tensor in inputs(40, 50)]
    q, k, v = (torch.stack([tensor, tensor], dim=-1)[..., 0] for tensor in strided)
    assert not any(tensor.is_contiguous() for tensor in (q, k, v))
    compare((q, k, v), causal=True, block_q=16, block_k=32)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_formats_and_the_bytes_they_take(dtype: torch.dtype) -> None:
    tensors = inputs(40, 50, dtype=dtype)
    traffic = TileTraffic()
    result = tiled.forward(*tensors, causal=True, block_q=16, block_k=16, traffic=traffic)
    assert (result.output.dtype, result.log_sum_exp.dtype) == (dtype, torch.float32)
    assert traffic == cost.tiled_forward(cost.problem_from_tensors(*tensors[:2], causal=True), 16, 16)
    exact = reference.attention(*(tensor.double() for tensor in tensors), causal=True)
    torch.testing.assert_close(result.output, exact.to(dtype), rtol=2e-2 if dtype != torch.float32 else 1e-5, atol=1e-5)


def test_queries_that_see_no_key() -> None:
    q, k, v = inputs(30, 10)
    result = tiled.forward(q, k, v, causal=True, block_q=8, block_k=4)
    assert bool((result.output[:, :, :20] == 0).all())
    assert bool((result.log_sum_exp[:, :, :20] == -torch.inf).all())
    gradients = tiled.backward(q, k, v, result, torch.ones_like(q), causal=True, block_q=8, block_k=4)
    assert bool((gradients.queries[:, :, :20] == 0).all())
    assert all(bool(gradient.isfinite().all()) for gradient in gradients)


def test_tiles_that_nobody_sees_are_skipped() -> None:
    tensors = inputs(128, 128)
    full, causal = TileTraffic(), TileTraffic()
    tiled.forward(*tensors, block_q=16, block_k=16, traffic=full)
    tiled.forward(*tensors, causal=True, block_q=16, block_k=16, traffic=causal)
    keys_and_values = [each.read - tensors[0].nbytes for each in (full, causal)]
    assert keys_and_values[1] / keys_and_values[0] == (8 * 9 / 2) / 8**2


def test_one_step_of_the_online_softmax() -> None:
    scores, values = torch.randn(3, 10, dtype=torch.float64), torch.randn(10, 2, dtype=torch.float64)
    state = tiled.initial_state(torch.zeros(3, 2, dtype=torch.float64))
    for part in (slice(0, 4), slice(4, 5), slice(5, 10)):
        state = tiled.update_state(state, scores[:, part], values[part])
    torch.testing.assert_close(state.m_i.squeeze(-1), scores.amax(dim=-1))
    torch.testing.assert_close(state.acc / state.l_i, torch.softmax(scores, dim=-1) @ values)


def test_counting_goes_on_where_it_stood() -> None:
    tensors, traffic = inputs(20, 20), TileTraffic()
    tiled.forward(*tensors, traffic=traffic)
    once = dataclasses.replace(traffic)
    tiled.forward(*tensors, traffic=traffic)
    assert (traffic.read, traffic.written, traffic.on_chip) == (2 * once.read, 2 * once.written, 2 * once.on_chip)
    assert traffic.memory == traffic.read + traffic.written


@pytest.mark.parametrize("block", [0, -3])
def test_a_block_without_rows_is_refused(block: int) -> None:
    tensors = inputs(4, 4)
    for blocks in ({"block_q": block}, {"block_k": block}):
        with pytest.raises(ValueError, match=rf"^A block has {block} rows; it needs 1 or more\.$"):
            tiled.forward(*tensors, **blocks)
