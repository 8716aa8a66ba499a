"""What attention costs: counts against enumeration, against what PyTorch moves and keeps, and at sizes beyond 2**31."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from gpuguide.attention import cost, reference
from gpuguide.attention.cost import problem
from gpuguide.gradients import kept_bytes

LONG = problem(4, 32, 131072, 128, keys=262144, kv_heads=8, causal=True)
"""More than 2**31 numbers in the queries, and more than 2**40 scores"""


class Moved(TorchDispatchMode):
    """Adds up the bytes of tensors that operations read and write; views move nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.read = self.written = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name in {"bmm", "mul", "masked_fill", "_softmax", "_softmax_backward_data"}:
            self.read += sum(each.nbytes for each in args if isinstance(each, torch.Tensor) and each.ndim)
            self.written += found.nbytes
        else:
            assert name in {"expand", "view", "_unsafe_view", "transpose", "t", "detach", "bitwise_not", "ones", "tril"}
        return found


def moved_by_pytorch(causal: bool) -> tuple[cost.AttentionProblem, tuple[int, int], tuple[int, int], int]:
    """Return the sizes, bytes of the forward and of the backward pass, and those kept in between beside the inputs."""
    q, k, v = (torch.randn(2, 3, length, 16, dtype=torch.bfloat16, requires_grad=True) for length in (20, 30, 30))
    kept = kept_bytes(lambda: reference.naive_attention(q, k, v, causal=causal), (q, k, v))
    with Moved() as forward:
        output = reference.naive_attention(q, k, v, causal=causal)
    d_output = torch.ones_like(output)
    with Moved() as backward:
        torch.autograd.grad(output, (q, k, v), d_output)
    sizes = cost.problem_from_tensors(q, k, causal=causal)
    return sizes, (forward.read, forward.written), (backward.read, backward.written), kept


@pytest.mark.parametrize("causal", [False, True])
def test_the_naive_form_moves_and_keeps_what_pytorch_does(causal: bool) -> None:
    sizes, forward, backward, kept = moved_by_pytorch(causal)
    for passes, counted in ((cost.naive_forward(sizes), forward), (cost.naive_backward(sizes), backward)):
        assert (sum(each.read for each in passes), sum(each.written for each in passes)) == counted
        assert cost.bytes_moved(passes) == sum(counted)
    assert cost.naive_kept_bytes(sizes) == kept


def test_passes_over_the_scores() -> None:
    full, causal = problem(1, 1, 64, 16), problem(1, 1, 64, 16, causal=True)
    assert [cost.score_passes(cost.naive_forward(each)) for each in (full, causal)] == [6, 8]
    assert [cost.score_passes(cost.naive_backward(each)) for each in (full, causal)] == [9, 11]


@given(st.integers(0, 30), st.integers(0, 30), st.booleans())
def test_pairs_are_those_of_the_mask(queries: int, keys: int, causal: bool) -> None:
    seen = reference.causal_mask(queries, keys) if causal else torch.ones(queries, keys)
    assert cost.pairs(queries, keys, causal) == int(seen.sum())


def test_operations() -> None:
    p = problem(2, 16, 8192, 128, causal=True)
    assert cost.forward_flops(p) == 4 * 2 * 16 * 128 * sum(range(1, 8193))
    assert cost.backward_flops(p) / cost.forward_flops(p) == 2.5
    assert cost.backward_flops(p, products=7) / cost.forward_flops(p) == 3.5
    assert cost.exponentials(p) * 4 * 128 == cost.forward_flops(p)
    assert sum(each.flops for each in cost.naive_forward(p)) == 4 * 2 * 16 * 128 * 8192**2
    assert sum(each.flops for each in cost.naive_backward(p)) == 8 * 2 * 16 * 128 * 8192**2


def test_sizes_beyond_32_bits_are_exact() -> None:
    heads, queries, keys = 4 * 32, 131072, 262144
    pairs = sum(range(keys - queries + 1, keys + 1))
    assert LONG.query_bytes == 2 * heads * queries * 128 > 2**31
    assert LONG.pairs == heads * pairs
    assert cost.forward_flops(LONG) == 4 * 128 * heads * pairs
    assert LONG.scores == heads * queries * keys > 2**40
    assert cost.naive_kept_bytes(LONG) == 2 * heads * queries * keys + queries * keys
    whole = cost.tiled_forward(LONG, queries, keys)
    assert whole.memory == 2 * LONG.query_bytes + 2 * heads * keys * 128 * 2 + 4 * heads * queries
    rows_of_blocks = [keys - queries + 128 * (block + 1) for block in range(queries // 128)]
    assert cost.tiled_forward(LONG, 128, 64).read == LONG.query_bytes + heads * 2 * sum(rows_of_blocks) * 128 * 2


def test_the_least_bytes() -> None:
    p = problem(2, 8, 100, 64, keys=300, kv_heads=2)
    q, k, statistic = 2 * 8 * 100 * 64 * 2, 2 * 2 * 300 * 64 * 2, 2 * 8 * 100 * 4
    assert cost.compulsory_bytes(p) == 2 * q + 2 * k + statistic
    assert cost.compulsory_backward_bytes(p) == 4 * q + 4 * k + statistic
    assert cost.tiled_kept_bytes(p) == q + statistic
    own_keys = problem(2, 8, 100, 64, keys=300)
    assert cost.tiled_forward(own_keys, 100, 64).memory == cost.compulsory_bytes(own_keys)
    assert cost.intensity(p, cost.compulsory_bytes(p)) == cost.forward_flops(p) / cost.compulsory_bytes(p)


def test_float64_is_computed_with_in_float64() -> None:
    p = problem(1, 1, 10, 4, element_size=8)
    assert p.statistic_bytes == 10 * 8
    assert cost.tile_bytes(2, 3, 4, 8) == (2 + 6) * 4 * 8 + (6 + 8) * 8


@given(st.integers(400, 10**6), st.sampled_from([16, 64, 128]), st.sampled_from([2, 4, 8]))
def test_the_largest_block_fits_and_one_row_more_does_not(sram: int, head_dim: int, element_size: int) -> None:
    if sram < cost.tile_bytes(1, 1, head_dim, element_size):
        with pytest.raises(ValueError, match=f"^A tile of one row with head_dim {head_dim} takes "):
            cost.largest_block(sram, head_dim, element_size)
        return
    block = cost.largest_block(sram, head_dim, element_size)
    assert cost.tile_bytes(block, block, head_dim, element_size) <= sram
    assert cost.tile_bytes(block + 1, block + 1, head_dim, element_size) > sram


def test_bytes_follow_the_bound_of_the_paper() -> None:
    base, longer = problem(1, 1, 2**14, 64), problem(1, 1, 2**15, 64)
    assert cost.io_bound(longer, 10**5) == 4 * cost.io_bound(base, 10**5)
    assert cost.io_bound(base, 2 * 10**5) == cost.io_bound(base, 10**5) / 2
    assert cost.io_bound(base, 10**5) == (2**14 * 64) ** 2 / (10**5 / 2) * 2
    sizes = [2**12 * factor for factor in (1, 2, 4, 8, 16, 32)]
    constants = [cost.tiled_forward_for_sram(base, sram).read / cost.io_bound(base, sram) for sram in sizes]
    assert 5 < min(constants) <= max(constants) < 20


def test_floors() -> None:
    p = problem(2, 16, 8192, 128, causal=True)
    rate = cost.exponential_rate(132, 1.83e9)
    assert rate == pytest.approx(3.865e12, rel=1e-3)
    found = cost.forward_floor(p, 800e12, 3e12, rate)
    assert found.products == cost.forward_flops(p) / 800e12
    assert found.exponentials == p.pairs / rate
    assert found.memory == cost.compulsory_bytes(p) / 3e12
    assert (found.time, found.bound) == (found.products, "products")
    assert cost.backward_floor(p, 800e12, 3e12, rate).products == 2.5 * found.products
    assert cost.backward_floor(p, 800e12, 3e12, rate, products=7).products == 3.5 * found.products
    assert cost.forward_floor(problem(64, 12, 16, 64), 800e12, 3e12, rate).bound == "memory"


def test_exponentials_take_as_long_as_products_at_head_dim_64() -> None:
    rate = cost.exponential_rate(132, 1.83e9)
    assert cost.balanced_head_dim(989.4e12, rate) == pytest.approx(64, rel=1e-3)
    small, large = (cost.forward_floor(problem(1, 1, 10**5, dim), 989.4e12, 3e12, rate) for dim in (32, 128))
    assert (small.bound, large.bound) == ("exponentials", "products")
    assert small.exponentials / small.products == pytest.approx(2, rel=1e-3)


def test_the_floor_of_the_naive_form_is_a_sum() -> None:
    passes = cost.naive_forward(problem(1, 1, 4096, 64, causal=True))
    assert cost.naive_floor(passes, math.inf, 1e12) == pytest.approx(cost.bytes_moved(passes) / 1e12)
    assert cost.naive_floor(passes, 1e12, math.inf) == pytest.approx(4 * 64 * 4096**2 / 1e12)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"batch": 0}, "batch is 0; it must be at least 1."),
        ({"seq_len": 0}, "seq_len is 0; it must be at least 1."),
        ({"keys": -2}, "keys is -2; it must be at least 1."),
        ({"kv_heads": 3}, "There are 4 heads, which is no multiple of the 3 kv_heads."),
        ({"element_size": 0}, "element_size is 0; it must be at least 1."),
    ],
)
def test_impossible_sizes_are_named(sizes: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        problem(**{"batch": 1, "heads": 4, "seq_len": 8, "head_dim": 16, **sizes})
