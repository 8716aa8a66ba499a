"""The cost model of inference against hand counts, PyTorch, transformers, the paper's table and brute force."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import fields, replace
from itertools import combinations, pairwise
from math import ceil

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from random_models import random_gpt2, random_llama
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from gpuguide.attention.cost import compulsory_bytes, forward_flops, problem
from gpuguide.costs import limits, memory, presets, roofline
from gpuguide.errors import GpuguideError
from gpuguide.inference import PAGE, Decoder, cost, prepare, static_cache
from gpuguide.inference.cost import BF16, Slot, Storage, make_storage
from gpuguide.inference.decoder import WEIGHTS, Linear, Norm
from gpuguide.models import gpt2, llama

GPT2, LLAMA, MIXTRAL = map(presets.shape, ("gpt2", "llama-3.1-8b", "mixtral-8x7b"))
PEAK, BANDWIDTH = 1000e12, 4e12
SMALL = memory.Shape(3, 32, 4, 2, 8, 48, 100, 64)
"""Grouped keys and a gate, small enough to run"""
NARROW = gpt2.GPT2Config(vocab_size=100, context=64, layers=3, heads=4, hidden=32)
NARROW_SHAPE = replace(
    GPT2, layers=3, hidden=32, heads=4, kv_heads=4, head_dim=8, intermediate=128, vocab=100, context=64
)
"""A narrow GPT-2, and its shape as one would write it down"""
needs_transformers = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="transformers is not installed"
)
shapes = st.sampled_from([GPT2, LLAMA, MIXTRAL, SMALL])


# --- bytes and operations --------------------------------------------------------------------------------


def test_gpt2_by_hand() -> None:
    matrices = 12 * 12 * 768**2
    biases_and_norms = 12 * (3 * 768 + 768 + 3072 + 768 + 4 * 768)
    head = 50257 * 768
    assert matrices == 84_934_656
    assert cost.linear_bytes(GPT2) == 2 * (matrices + biases_and_norms)
    assert cost.head_bytes(GPT2) == 2 * (head + 2 * 768)
    assert cost.weight_bytes_read(GPT2) == 2 * (matrices + biases_and_norms + head + 2 * 768 + 768)
    assert cost.weight_bytes_held(GPT2) == 2 * 124_439_808
    assert cost.cache_bytes_per_token(GPT2) == 12 * 2 * 768 * 2 == 36_864
    assert cost.decode_flops(GPT2, 99) == 2 * (matrices + head) + 12 * 2 * (2 * 768 * 100)
    assert cost.prefill_flops(GPT2, 3) == 2 * (3 * matrices + head) + 12 * 2 * 2 * 768 * (1 + 2 + 3)


def test_narrow_formats_leave_all_but_the_matrices_as_they_are() -> None:
    matrices = 12 * 12 * 768**2
    assert cost.linear_bytes(GPT2) - cost.linear_bytes(GPT2, make_storage("int8")) == matrices
    in_groups_of_64 = Storage(matrix=cost.quantized_size(4, 64))
    assert cost.linear_bytes(GPT2) - cost.linear_bytes(GPT2, in_groups_of_64) == 2 * matrices - (
        matrices / 2 + matrices / 64 * 2
    )
    assert cost.head_bytes(GPT2, make_storage("int4")) == cost.head_bytes(GPT2)
    assert cost.weight_bytes_read(GPT2, make_storage("fp32")) == 2 * cost.weight_bytes_read(GPT2)
    assert make_storage("int4").matrix == cost.quantized_size(4, 128)
    assert make_storage("bf16", "fp8") == replace(BF16, cache=1.0)
    assert cost.cache_bytes_per_token(LLAMA, make_storage("int4", "fp8")) == 32 * 2 * 8 * 128


@pytest.mark.parametrize("model", presets.load())
def test_all_parts_of_a_decode_step_are_what_the_calculator_counts(model: str) -> None:
    shape = presets.shape(model)
    for weights, cache, batch, context in (("bf16", "bf16", 1, 1), ("int4", "fp8", 3, 1000), ("fp32", "fp32", 64, 77)):
        parts = cost.decode_step(shape, batch, context, make_storage(weights, cache))
        whole = limits.decode_step(shape, batch, context, weights, cache)
        assert cost.flops(parts) == pytest.approx(whole.flops, rel=1e-12)
        assert cost.bytes_moved(parts) == pytest.approx(whole.moved, rel=1e-12)
        held = cost.weight_bytes_held(shape, make_storage(weights))
        setup = memory.Setup(purpose="generate", precision=weights)
        assert held == pytest.approx(memory.weight_bytes(shape, setup), rel=1e-12)


def test_the_weights_of_a_real_model_are_counted_once() -> None:
    model, shape = gpt2.GPT2(NARROW).to(torch.bfloat16), NARROW_SHAPE
    blocks = sum(each.numel() * each.element_size() for each in model.blocks.parameters())
    head = sum(
        each.numel() * each.element_size() for part in (model.head, model.final_norm) for each in part.parameters()
    )
    assert (cost.linear_bytes(shape), cost.head_bytes(shape)) == (blocks, head)
    assert cost.weight_bytes_held(shape) == 2 * model.parameter_count()


def kept_bytes(decoder: Decoder) -> tuple[int, int]:
    """Return the bytes of all weights in a decoder's layers, and of its head with the norm before it."""

    def size(part: Linear | Norm) -> int:
        return part.weight.nbytes + (0 if part.bias is None else part.bias.nbytes)

    layers = sum(size(getattr(layer, each.name)) for layer in decoder.layers for each in fields(layer))
    return layers, size(decoder.head) + size(decoder.final_norm)


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("model", [random_gpt2(heads=3, hidden=39), random_llama(tied=True), random_llama()])
def test_a_decoders_shape_and_storage_count_the_bytes_it_holds(
    model: gpt2.GPT2 | llama.Llama, dtype: torch.dtype, weights: str
) -> None:
    decoder = prepare(model, weights=weights, dtype=dtype)
    shape, storage = decoder.shape, decoder.storage()
    layers, head = kept_bytes(decoder)
    read = layers + head + shape.hidden * dtype.itemsize  # a row of the embedding
    assert cost.linear_bytes(shape, storage) == pytest.approx(layers, rel=1e-12)
    assert cost.head_bytes(shape, storage) == head
    assert cost.weight_bytes_read(shape, storage) == pytest.approx(read, rel=1e-12)
    cache = static_cache(decoder, 1, 1)
    assert cost.cache_bytes_per_token(shape, storage) * PAGE == (cache.keys.nbytes + cache.values.nbytes) / 2
    name = {torch.bfloat16: "bf16", torch.float32: "fp32"}[dtype]
    assert (storage == make_storage(name, name)) == (weights == "plain")


def counted(run: Callable[[], object]) -> int:
    """Return the operations that PyTorch counts; of attention, those of all pairs, hidden or not."""
    with torch.inference_mode(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        run()
    return int(counter.get_total_flops())


@pytest.mark.parametrize("tokens", [1, 7, 64])
def test_prefill_against_pytorchs_counter(tokens: int) -> None:
    model, shape = gpt2.GPT2(NARROW).eval(), NARROW_SHAPE
    hidden_pairs = 3 * 4 * 32 * tokens * (tokens - 1) / 2
    found = counted(lambda: model(torch.zeros(1, tokens, dtype=torch.long)))
    assert cost.prefill_flops(shape, tokens, scored=tokens) + hidden_pairs == found


@needs_transformers
def test_a_step_with_a_cache_against_transformers() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=100,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    model = LlamaForCausalLM(config).eval()
    model.set_attn_implementation("eager")
    with torch.inference_mode():
        cache = model(torch.zeros(2, 9, dtype=torch.long), use_cache=True).past_key_values
    new = torch.zeros(2, 1, dtype=torch.long)
    found = counted(lambda: model(new, past_key_values=cache, use_cache=True))
    angles = 2 * 4  # of the rotations: transformers computes them as a product, half a head long
    assert found == 2 * cost.decode_flops(SMALL, 9) + angles
    numbers = sum(layer.keys.numel() + layer.values.numel() for layer in cache.layers)
    assert 2 * numbers == 2 * 10 * cost.cache_bytes_per_token(SMALL)


@given(st.integers(1, 4), st.integers(0, 1000), st.integers(1, 1000))
def test_attention_of_a_pass_is_causal_attention(batch: int, context: int, tokens: int) -> None:
    part = cost.one_pass(LLAMA, [context] * batch, tokens)[2]
    layer = problem(batch, 32, tokens, 128, keys=context + tokens, kv_heads=8, causal=True)
    assert part.flops == 32 * forward_flops(layer)
    assert part.moved == 32 * (compulsory_bytes(layer) - 2 * layer.query_bytes - layer.statistic_bytes)


@given(shapes, st.lists(st.integers(1, 12), min_size=1, max_size=5))
def test_a_prompt_in_pieces_is_the_same_arithmetic(shape: memory.Shape, pieces: list[int]) -> None:
    starts = np.cumsum([0, *pieces[:-1]]).tolist()
    passes = [cost.one_pass(shape, [start], piece, 0) for start, piece in zip(starts, pieces, strict=True)]
    whole = cost.prefill_flops(shape, sum(pieces), scored=0)
    assert sum(map(cost.flops, passes)) == pytest.approx(whole, rel=1e-12)
    assert whole == pytest.approx(
        sum(cost.decode_flops(shape, seen) - cost.head_flops(shape) for seen in range(sum(pieces)))
    )


@given(shapes, st.lists(st.integers(0, 50), min_size=1, max_size=6), st.integers(1, 10))
def test_the_weights_are_shared_and_the_cache_is_not(shape: memory.Shape, contexts: list[int], tokens: int) -> None:
    together = cost.one_pass(shape, contexts, tokens)
    alone = [cost.one_pass(shape, [context], tokens) for context in contexts]
    assert cost.flops(together) == pytest.approx(sum(map(cost.flops, alone)))
    assert together[2].moved == sum(parts[2].moved for parts in alone)
    assert together[3].moved == alone[0][3].moved
    if shape.experts == 1:
        assert together[1].moved == alone[0][1].moved
    else:
        assert alone[0][1].moved <= together[1].moved <= 8 / 2 * alone[0][1].moved


def test_a_verification_is_a_pass_with_logits_everywhere() -> None:
    parts = cost.verification(LLAMA, 2, 100, 4)
    assert cost.flops(parts) == pytest.approx(2 * sum(cost.decode_flops(LLAMA, 100 + done) for done in range(5)))
    assert parts[2].moved == 2 * 105 * cost.cache_bytes_per_token(LLAMA)
    assert cost.verification(LLAMA, 2, 100, 0) == cost.decode_step(LLAMA, 2, 100)


# --- times -----------------------------------------------------------------------------------------------


def test_the_floor_of_a_step_by_hand() -> None:
    read = cost.weight_bytes_read(GPT2) + 1024 * 36_864
    assert cost.decode_time(GPT2, 1, 1023, PEAK, BANDWIDTH) == pytest.approx(read / BANDWIDTH)
    products = 512 * 2 * (84_934_656 + 50257 * 768)
    others = 512 * (1024 * 36_864 + 2 * 768)
    expected = products / PEAK + others / BANDWIDTH
    assert cost.decode_time(GPT2, 512, 1023, PEAK, BANDWIDTH) == pytest.approx(expected)


@given(shapes, st.integers(1, 600), st.integers(0, 40), st.sampled_from(["bf16", "int4"]))
def test_the_parts_take_as_long_as_the_whole_or_longer(
    shape: memory.Shape, batch: int, context: int, weights: str
) -> None:
    parts = cost.decode_step(shape, batch, context, make_storage(weights))
    whole = roofline.time_floor(cost.flops(parts), cost.bytes_moved(parts), PEAK, BANDWIDTH)
    found = cost.pass_time(parts, PEAK, BANDWIDTH)
    assert whole <= found * (1 + 1e-12)
    assert found <= cost.flops(parts) / PEAK + cost.bytes_moved(parts) / BANDWIDTH
    assert cost.decode_time(shape, batch + 1, context, PEAK, BANDWIDTH, make_storage(weights)) > found
    assert cost.decode_time(shape, batch, context + 1, PEAK, BANDWIDTH, make_storage(weights)) > found


@pytest.mark.parametrize("weights", ["bf16", "int8", "int4"])
def test_linear_layers_turn_compute_bound_at_the_ridge(weights: str) -> None:
    turn = cost.compute_bound_tokens(PEAK, BANDWIDTH, make_storage(weights).matrix)
    below, above = (
        cost.decode_step(LLAMA, batch, 0, make_storage(weights))[1] for batch in (int(turn), ceil(1.01 * turn))
    )
    assert cost.part_bound(below, PEAK, BANDWIDTH) == "memory"
    assert cost.part_bound(above, PEAK, BANDWIDTH) == "arithmetic"
    prompt = cost.prefill(LLAMA, ceil(1.01 * turn), storage=make_storage(weights))[1]
    assert prompt == above


@given(st.sampled_from([GPT2, LLAMA]), st.integers(1, 512), st.integers(1, 1000))
def test_attention_of_a_decode_step_stays_bound_by_memory(shape: memory.Shape, batch: int, context: int) -> None:
    part = cost.decode_step(shape, batch, context)[2]
    assert part.flops / part.moved == pytest.approx(cost.cache_intensity(shape)) == shape.heads // shape.kv_heads
    assert cost.part_bound(part, PEAK, BANDWIDTH) == "memory"


def test_an_answer_is_a_prefill_and_steps() -> None:
    steps = [cost.decode_time(LLAMA, 4, 100 + done, PEAK, BANDWIDTH) for done in range(9)]
    prefill = cost.prefill_time(LLAMA, 100, PEAK, BANDWIDTH, batch=4)
    assert cost.answer_time(LLAMA, 100, 10, 4, PEAK, BANDWIDTH) == pytest.approx(prefill + sum(steps))
    assert cost.answer_time(LLAMA, 100, 1, 4, PEAK, BANDWIDTH) == prefill
    alone = cost.prefill_time(LLAMA, 100, PEAK, BANDWIDTH)
    assert cost.time_to_first_token(LLAMA, 100, PEAK, BANDWIDTH, waiting=0.5) == 0.5 + alone
    assert cost.verification_time(LLAMA, 4, 100, 0, PEAK, BANDWIDTH) == steps[0]


def test_rates() -> None:
    assert [cost.tokens_per_second(batch, time) for batch, time in ((1, 0.05), (8, 0.08), (32, 0.2))] == [20, 100, 160]
    assert cost.tokens_per_second(1, 0.2, tokens=2.5) == 12.5


@given(st.sampled_from([GPT2, LLAMA]), st.integers(1, 1000), st.floats(1e8, 1e12))
def test_the_largest_batch_fits_and_one_more_does_not(shape: memory.Shape, context: int, available: float) -> None:
    def needed(batch: int) -> float:
        return cost.weight_bytes_held(shape) + batch * context * cost.cache_bytes_per_token(shape)

    batch = cost.largest_batch(shape, context, available)
    assert batch == 0 or needed(batch) <= available
    assert needed(batch + 1) > available
    setup = memory.Setup(purpose="generate", precision="bf16", seq_len=context)
    assert memory.largest_batch(shape, setup, available) <= batch


@given(st.sampled_from([GPT2, LLAMA]), st.integers(0, 1000), st.floats(1e-5, 1e-2))
def test_the_largest_batch_in_time(shape: memory.Shape, context: int, seconds: float) -> None:
    batch = cost.largest_batch_in_time(shape, context, seconds, PEAK, BANDWIDTH)
    assert batch == 0 or cost.decode_time(shape, batch, context, PEAK, BANDWIDTH) <= seconds
    assert cost.decode_time(shape, batch + 1, context, PEAK, BANDWIDTH) > seconds


def test_the_search_for_a_batch_ends() -> None:
    assert cost.largest_batch_in_time(GPT2, 0, 1e9, PEAK, BANDWIDTH) == cost.MOST_SEQUENCES


# --- speculation -----------------------------------------------------------------------------------------

TABLE_1 = [
    (0.6, 2, 1.53, 1.96),
    (0.7, 3, 1.58, 2.53),
    (0.8, 2, 1.23, 2.44),
    (0.8, 5, 1.63, 3.69),
    (0.9, 2, 1.11, 2.71),
    (0.9, 10, 1.60, 6.86),
]
"""Of the paper: acceptance, tokens drafted, operations and speed against ordinary decoding, with a free draft model"""


@pytest.mark.parametrize(("acceptance", "drafted", "operations", "speed"), TABLE_1)
def test_the_papers_table(acceptance: float, drafted: int, operations: float, speed: float) -> None:
    assert cost.operations_factor(acceptance, drafted) == pytest.approx(operations, abs=0.0051)
    assert cost.speedup(acceptance, drafted, 0) == pytest.approx(speed, abs=0.0051)


@pytest.mark.parametrize(("acceptance", "drafted"), [(0.0, 4), (0.3, 1), (0.8, 5), (0.95, 12), (1.0, 3)])
def test_tokens_of_a_cycle_by_drawing(acceptance: float, drafted: int) -> None:
    drawn = np.random.default_rng(0).random((200_000, drafted)) < acceptance
    tokens = 1 + np.cumprod(drawn, axis=1).sum(axis=1)
    error = tokens.std() / len(tokens) ** 0.5
    assert cost.expected_tokens(acceptance, drafted) == pytest.approx(tokens.mean(), abs=5 * error + 1e-12)


@given(st.floats(0, 0.999), st.integers(0, 40))
def test_the_sum_is_the_papers_quotient(acceptance: float, drafted: int) -> None:
    quotient = (1 - acceptance ** (drafted + 1)) / (1 - acceptance)
    assert cost.expected_tokens(acceptance, drafted) == pytest.approx(quotient)
    assert 1 <= cost.expected_tokens(acceptance, drafted) <= drafted + 1
    assert cost.operations_factor(acceptance, drafted) >= 1


@given(st.floats(0, 1), st.floats(0, 1.5))
def test_the_best_draft_length_is_the_best_of_all(acceptance: float, cost_ratio: float) -> None:
    tried = [cost.speedup(acceptance, drafted, cost_ratio) for drafted in range(65)]
    best = cost.best_draft_length(acceptance, cost_ratio)
    assert tried[best] == pytest.approx(max(tried), rel=1e-9)
    assert (best > 0) == (tried[1] > 1)
    assert cost.best_draft_length(acceptance, cost_ratio, most=3) == min(best, 3)


def test_drafting_pays_if_acceptance_is_above_the_cost() -> None:
    assert cost.best_draft_length(0.5, 0.49) > 0
    assert cost.best_draft_length(0.5, 0.51) == 0
    assert cost.speedup(0.5, 1, 0.2) == pytest.approx(1.5 / 1.2)
    assert cost.best_draft_length(1, 0) == 64


@given(st.floats(0, 1), st.integers(0, 20), st.floats(0, 1))
def test_nothing_is_gained_where_a_verification_costs_as_much_as_its_tokens(
    acceptance: float, drafted: int, draft_step: float
) -> None:
    assert cost.cycle_speedup(acceptance, drafted, 1.0, draft_step, drafted + 1) <= 1 + 1e-12
    free = cost.cycle_speedup(acceptance, drafted, 2.0, 0.0, 2.0)
    assert free == pytest.approx(cost.expected_tokens(acceptance, drafted))


def test_acceptance_by_drawing() -> None:
    generator = np.random.default_rng(1)
    target, draft = generator.dirichlet([0.3] * 20), generator.dirichlet([0.3] * 20)
    drawn = generator.choice(20, size=200_000, p=draft)
    accepted = generator.random(len(drawn)) * draft[drawn] < target[drawn]
    found = cost.acceptance_probability(target.tolist(), draft.tolist())
    assert found == pytest.approx(accepted.mean(), abs=5 * 0.5 / len(drawn) ** 0.5)
    assert found == cost.acceptance_probability(draft.tolist(), target.tolist())
    assert cost.acceptance_probability(target.tolist(), target.tolist()) == pytest.approx(1)
    assert cost.acceptance_probability([1.0, 0.0], [0.0, 1.0]) == 0


# --- batching --------------------------------------------------------------------------------------------

requests = st.lists(st.integers(1, 30), min_size=1, max_size=25)


def step_by_step(lengths: list[int], rows: int, continuous: bool) -> list[int]:
    """Return when each answer is done, a step at a time."""
    waiting, left, done, now = list(range(len(lengths))), list(lengths), [0] * len(lengths), 0
    running: list[int] = []
    while waiting or running:
        if continuous or not running:
            taken = waiting[: rows - len(running)]
            waiting, running = waiting[len(taken) :], running + taken
        now += 1
        for each in running:
            left[each] -= 1
            done[each] = done[each] or (now if left[each] == 0 else 0)
        running = [each for each in running if left[each] > 0]
    return done


@given(requests, st.integers(1, 8))
def test_slots_are_what_a_walk_through_the_steps_gives(lengths: list[int], rows: int) -> None:
    assert [slot.finish for slot in cost.static_slots(lengths, rows)] == step_by_step(lengths, rows, False)
    assert [slot.finish for slot in cost.continuous_slots(lengths, rows)] == step_by_step(lengths, rows, True)


@given(requests, st.integers(1, 8))
def test_a_row_has_one_request_at_a_time_and_no_token_is_lost(lengths: list[int], rows: int) -> None:
    for slots in (cost.static_slots(lengths, rows), cost.continuous_slots(lengths, rows)):
        assert [slot.finish - slot.start for slot in slots] == lengths
        assert all(0 <= slot.row < rows and slot.finish <= slot.freed for slot in slots)
        for row in range(rows):
            own = [slot for slot in slots if slot.row == row]
            assert all(one.freed <= other.start for one, other in pairwise(own))
        assert cost.occupancy(slots, rows) == pytest.approx(sum(lengths) / rows / cost.steps(slots))
        assert max(max(lengths), ceil(sum(lengths) / rows)) <= cost.steps(slots)


@given(requests, st.integers(1, 8))
def test_continuous_batching_is_never_later(lengths: list[int], rows: int) -> None:
    static, continuous = cost.static_slots(lengths, rows), cost.continuous_slots(lengths, rows)
    assert all(one.finish <= other.finish for one, other in zip(continuous, static, strict=True))
    assert cost.steps(continuous) <= cost.steps(static)
    assert cost.steps(continuous) <= sum(lengths) / rows + max(lengths), "at the end alone are rows empty"
    assert cost.static_efficiency(lengths, rows) == pytest.approx(cost.occupancy(static, rows))


@given(st.lists(st.integers(1, 30), min_size=1, max_size=7), st.data())
def test_the_expected_efficiency_over_all_batches(lengths: list[int], data: st.DataObject) -> None:
    rows = data.draw(st.integers(1, len(lengths)))
    longest = [max(batch) for batch in combinations(lengths, rows)]
    expected = np.mean(lengths) / np.mean(longest)
    assert cost.expected_static_efficiency(lengths, rows) == pytest.approx(expected)


def test_efficiency_at_the_edges() -> None:
    assert cost.static_efficiency([7] * 12, 4) == cost.expected_static_efficiency([7] * 12, 4) == 1
    assert cost.static_efficiency([3, 9, 1], 1) == 1
    assert cost.static_efficiency([3, 9, 1], 3) == cost.expected_static_efficiency([3, 9, 1], 3) == 13 / 27
    many = list(range(1, 3001))
    assert cost.expected_static_efficiency(many, 32) == pytest.approx(3001 / 2 / (32 / 33 * 3001))
    assert cost.static_slots([2], 3) == cost.continuous_slots([2], 3) == [Slot(0, 0, 2, 2)]


# --- what makes no sense ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: make_storage("int3"), "no format of weights named 'int3'"),
        (lambda: make_storage(cache="int4"), "no format of a cache named 'int4'"),
        (lambda: cost.quantized_size(4, 0), "^group is 0; it must be at least 1"),
        (lambda: cost.decode_step(GPT2, 0, 10), "^There are no sequences"),
        (lambda: cost.decode_step(GPT2, 1, -1), "^context is -1; it must be at least 0"),
        (lambda: cost.prefill(GPT2, 0), "^tokens is 0; it must be at least 1"),
        (lambda: cost.one_pass(GPT2, [1], 2, 3), "^scored is 3; of 2 new tokens, 0 to 2 can get logits"),
        (lambda: cost.decode_step(GPT2, 1, 1024), "^A sequence has 1025 tokens after the pass; the model knows 1024"),
        (lambda: cost.answer_time(GPT2, 10, 0, 1, PEAK, BANDWIDTH), "^answer is 0"),
        (lambda: cost.largest_batch(GPT2, 0, 1e9), "^context is 0"),
        (lambda: cost.expected_tokens(1.1, 3), "^acceptance is 1.1; it is a probability"),
        (lambda: cost.expected_tokens(0.5, -1), "^drafted is -1"),
        (lambda: cost.speedup(0.5, 1, -0.1), "^cost_ratio is -0.1"),
        (lambda: cost.acceptance_probability([1.0], [0.5, 0.5]), "^There are 1 probabilities of the target and 2"),
        (lambda: cost.acceptance_probability([0.5, 0.6], [0.5, 0.5]), "^target is no distribution"),
        (lambda: cost.acceptance_probability([1.0, 0.0], [1.5, -0.5]), "^draft is no distribution"),
        (lambda: cost.static_slots([], 2), "^There are no lengths"),
        (lambda: cost.continuous_slots([3, 0], 2), "^A length is 0"),
        (lambda: cost.static_efficiency([3], 0), "^rows is 0"),
        (lambda: cost.expected_static_efficiency([3, 4], 3), "^There are 2 lengths, which do not fill a batch of 3"),
    ],
)
def test_what_makes_no_sense_is_answered_in_a_sentence(wrong: Callable[[], object], message: str) -> None:
    with pytest.raises(GpuguideError, match=message):
        wrong()
