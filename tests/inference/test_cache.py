"""Pages of a cache against a dictionary of what was written where."""

from __future__ import annotations

import re

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from random_models import random_gpt2, random_llama, random_prompts, shuffled_cache

from gpuguide.errors import GpuguideError
from gpuguide.inference import PAGE, empty_cache, plain, prepare, static_cache
from gpuguide.inference.cache import NOBODY, pages_for

DECODER = prepare(random_llama(heads=4, kv_heads=2, hidden=32))
BORDERS = [1, PAGE - 1, PAGE, PAGE + 1, 2 * PAGE, 2 * PAGE + 1]


@pytest.mark.parametrize("capacity", BORDERS)
def test_a_static_cache_has_pages_for_every_token(capacity: int) -> None:
    cache = static_cache(DECODER, 3, capacity)
    pages = -(-capacity // 64)
    assert (cache.rows, cache.capacity) == (3, 64 * pages)
    assert sorted(cache.table.flatten().tolist()) == list(range(1, 3 * pages + 1))  # nobody's is given away, none twice
    shape = DECODER.shape
    assert cache.keys.shape == cache.values.shape == (shape.layers, 1 + 3 * pages, shape.kv_heads, 64, shape.head_dim)
    assert cache.keys.data_ptr() != cache.values.data_ptr()
    assert (cache.keys.dtype, cache.keys.device) == (DECODER.dtype, DECODER.device)


def test_an_empty_cache_has_given_no_page_away() -> None:
    cache = empty_cache(prepare(random_gpt2(), dtype=torch.bfloat16), rows=2, capacity=65, pages=7)
    assert cache.table.tolist() == [[NOBODY, NOBODY]] * 2
    assert cache.keys.shape[1] == 8
    assert cache.keys.dtype == cache.values.dtype == torch.bfloat16


@pytest.mark.parametrize("name", ["rows", "capacity", "pages"])
@pytest.mark.parametrize("number", [0, -1])
def test_a_cache_that_holds_nothing(name: str, number: int) -> None:
    sizes = {"rows": 1, "capacity": 1, "pages": 1, name: number}
    with pytest.raises(GpuguideError, match=re.escape(f"A cache with {name} = {number} holds nothing")):
        empty_cache(DECODER, **sizes)
    if name != "pages":
        with pytest.raises(GpuguideError, match=re.escape(f"A cache with {name} = {number} holds nothing")):
            static_cache(DECODER, sizes["rows"], sizes["capacity"])


@pytest.mark.parametrize(("tokens", "pages"), [(0, 0), (1, 1), (63, 1), (64, 1), (65, 2), (128, 2), (129, 3)])
def test_pages_for_tokens(tokens: int, pages: int) -> None:
    assert pages_for(tokens) == pages


writes = st.lists(
    st.tuples(st.integers(0, 1), st.permutations(range(3)), st.integers(-3, 190), st.integers(1, 70)), max_size=6
)


@given(writes=writes, seed=st.integers(0, 99), length=st.sampled_from([*BORDERS, 3 * PAGE]))
def test_what_was_written_last_is_read(writes: list[tuple[int, list[int], int, int]], seed: int, length: int) -> None:
    """Layer, rows in some order (the last of them is not written), first position, and how many."""
    cache = shuffled_cache(DECODER, 3, 3 * PAGE, seed)
    shape = DECODER.shape
    kept: dict[tuple[int, int, int], tuple[torch.Tensor, torch.Tensor]] = {}
    generator = torch.Generator().manual_seed(seed)
    for layer, order, first, count in writes:
        rows, count = order[:2], min(count, 3 * PAGE - first)
        positions = torch.arange(first, first + count).repeat(2, 1)
        keys, values = torch.randn(2, 2, shape.kv_heads, count, shape.head_dim, generator=generator)
        cache.write(layer, torch.tensor(rows), positions, keys, values)
        for place, row in enumerate(rows):
            for offset in range(max(0, -first), count):
                kept[layer, row, first + offset] = keys[place, :, offset], values[place, :, offset]
    for layer in range(shape.layers):
        found = cache.read(layer, torch.tensor([2, 0, 1]), length)
        for side in range(2):
            assert found[side].shape == (3, shape.kv_heads, length, shape.head_dim)
            for place, row in enumerate((2, 0, 1)):
                for position in range(length):
                    given = kept.get((layer, row, position))
                    expected = torch.full((shape.kv_heads, shape.head_dim), torch.nan) if given is None else given[side]
                    assert torch.equal(found[side][place, :, position].nan_to_num(7e7), expected.nan_to_num(7e7))


def test_rows_can_share_a_page() -> None:
    cache = shuffled_cache(DECODER, 2, 2 * PAGE, seed=0)
    cache.table[1, 0] = cache.table[0, 0]
    keys, values = torch.randn(2, 1, 2, PAGE + 3, DECODER.shape.head_dim)
    cache.write(1, torch.tensor([0]), torch.arange(PAGE + 3)[None], keys, values)
    found = cache.read(1, torch.tensor([1]), PAGE + 3)
    assert torch.equal(found[0][:, :, :PAGE], keys[:, :, :PAGE])
    assert torch.equal(found[1][:, :, :PAGE], values[:, :, :PAGE])
    assert found[0][:, :, PAGE:].isnan().all()


def test_keys_are_kept_in_the_format_of_the_cache() -> None:
    cache = static_cache(prepare(random_llama(), dtype=torch.bfloat16), 1, 1)
    keys = torch.randn(1, 2, 1, 16)
    cache.write(0, torch.tensor([0]), torch.tensor([[0]]), keys, -keys)
    found = cache.read(0, torch.tensor([0]), 1)
    assert torch.equal(found[0], keys.bfloat16())
    assert torch.equal(found[1], -keys.bfloat16())


@pytest.mark.parametrize("length", BORDERS)
def test_what_lies_beyond_the_length_changes_nothing(length: int) -> None:
    """Whatever another text has left there, NaN included, and in pages that are nobody's too."""
    prompts = random_prompts([length, 2 * PAGE + 5], seed=1)
    tokens = torch.tensor([prompts[0] + [0] * (len(prompts[1]) - length), prompts[1]])
    counts = torch.tensor([length, len(prompts[1])])
    rows = torch.arange(2)
    results = []
    for cache in (static_cache(DECODER, 2, 3 * PAGE), shuffled_cache(DECODER, 2, 3 * PAGE, seed=length)):
        with torch.inference_mode():
            after = plain.prefill(DECODER, cache, tokens, rows, 0, counts)
            following = plain.decode(DECODER, cache, torch.tensor([[5, 6], [7, 8]]), rows, counts)
        results.append((after, following))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])
    assert results[0][1].isfinite().all()
