from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuguide.costs import limits, memory, presets, transfers
from gpuguide.errors import GpuguideError
from gpuguide.hardware import links

LLAMA = presets.shape("llama-3.1-8b")


def test_the_time_of_bytes_by_hand() -> None:
    """140 GB over PCIe 5.0 with 16 lanes, as a text on offloading has it: 2.2 s."""
    assert transfers.time_to_move(140e9, "pcie-5-x16") == pytest.approx(140 / 63.015)
    assert transfers.time_to_move(140e9, "pcie-5-x16", efficiency=0.5) == pytest.approx(280 / 63.015)
    assert transfers.time_to_move(0, "pcie-5-x16") == 0
    assert transfers.time_to_move(0, "pcie-5-x16", latency=1e-5) == 1e-5
    assert transfers.time_to_move(transfers.Transfer(0, 0), "nvlink-4", latency=1.0) == 0


@given(
    st.sampled_from(list(links.load())),
    st.integers(0, 10**15),
    st.floats(0, 10),
    st.floats(0.01, 1),
    st.integers(1, 1000),
)
def test_the_time_is_latencies_and_bytes(name: str, size: int, latency: float, share: float, messages: int) -> None:
    link = links.get(name)
    moved = transfers.Transfer(size, messages)
    found = transfers.time_to_move(moved, name, latency=latency, efficiency=share)
    expected = messages * Fraction(latency) + Fraction(size) / (Fraction(link.per_direction.value) * Fraction(share))
    assert found == pytest.approx(float(expected), rel=1e-12)
    assert transfers.time_to_move(moved, link, latency=latency, efficiency=share) == found


@pytest.mark.parametrize(
    ("what", "words", "says"),
    [
        (-1, {}, "The size is -1; write bytes, 0 or more."),
        (float("nan"), {}, "The size is nan"),
        (True, {}, "The size is True"),
        ("1 GB", {}, "The size is '1 GB'"),
        (1, {"latency": -1e-6}, "The latency is -1e-06; write seconds, 0 or more."),
        (1, {"latency": float("inf")}, "The latency is inf"),
        (1, {"efficiency": 0}, "The efficiency is 0; it must be above 0 and at most 1."),
        (1, {"efficiency": 1.01}, "The efficiency is 1.01"),
        (1, {"efficiency": float("nan")}, "The efficiency is nan"),
        (1, {"efficiency": True}, "The efficiency is True"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(what: float, words: dict[str, float], says: str) -> None:
    with pytest.raises(GpuguideError) as error:
        transfers.time_to_move(what, "pcie-5-x16", **words)
    assert says in str(error.value)


class Doubled:
    """A fit by which a byte takes two seconds."""

    def time(self, size: float) -> float:
        return 2 * size


def test_a_fit_gives_the_time_of_each_message() -> None:
    assert transfers.time_to_move(transfers.Transfer(30, 3), Doubled()) == 3 * 2 * 10
    assert transfers.time_to_move(7, Doubled()) == 14
    layer = transfers.offloaded_layers(LLAMA).size
    assert transfers.offloaded_forward(LLAMA, Doubled(), 1.0).load == 2 * layer
    for words in ({"latency": 1e-6}, {"efficiency": 0.9}):
        with pytest.raises(GpuguideError, match="A fit has its own latency and bandwidth"):
            transfers.time_to_move(1, Doubled(), **words)


def test_an_unknown_link_is_refused() -> None:
    with pytest.raises(GpuguideError, match=r"There is no link named 'nvlink-9'. Did you mean nvlink-"):
        transfers.time_to_move(1, "nvlink-9")


@pytest.mark.parametrize("model", presets.load())
@pytest.mark.parametrize("weights", memory.WEIGHT_FORMATS)
def test_weights_and_layers_are_those_of_the_memory_model(model: str, weights: str) -> None:
    shape = presets.shape(model)
    setup = memory.Setup("generate", weights, 1, 1)
    moved = transfers.model_weights(shape, weights)
    assert moved == transfers.Transfer(memory.weight_bytes(shape, setup), 1)
    layers = transfers.offloaded_layers(shape, weights)
    one_more = replace(shape, layers=shape.layers + 1)
    one = memory.weight_bytes(one_more, setup) - memory.weight_bytes(shape, setup)
    assert layers.moved == pytest.approx(shape.layers * one)
    assert layers.size == pytest.approx(one)
    assert layers.messages == shape.layers


def test_the_weights_of_a_model_by_hand() -> None:
    assert transfers.model_weights(LLAMA).moved == 2 * 8_030_261_248
    embedding = 128_256 * 4096
    assert transfers.offloaded_layers(LLAMA).moved == 2 * (8_030_261_248 - 2 * embedding - 4096)


def test_a_cache_is_that_of_the_memory_model() -> None:
    for batch, context, cache in ((1, 1, "bf16"), (7, 4096, "fp8"), (64, 131_072, "fp32")):
        setup = memory.Setup("generate", "bf16", batch, context, cache=cache)
        assert transfers.kv_cache(LLAMA, batch, context, cache).moved == memory.cache_bytes(LLAMA, setup)
    assert transfers.kv_cache(LLAMA, 1, 1).moved == 2 * 32 * 8 * 128 * 2


@pytest.mark.parametrize("gpus", [2, 3, 8, 72, 1024])
def test_gradients_go_round_a_ring_as_the_limits_count_it(gpus: int) -> None:
    found = transfers.gradient_all_reduce(LLAMA, gpus)
    assert found.moved == pytest.approx(limits.all_reduce(2 * LLAMA.parameters(), gpus).moved)
    assert found.messages == 2 * (gpus - 1)
    assert transfers.gradient_all_reduce(LLAMA, gpus, "fp32").moved == pytest.approx(2 * found.moved)


def ring(parts: int, size: int) -> tuple[int, int]:
    """Return what a ring that is really gone round sends from one of its ends, and in how many steps."""
    chunk = size // parts
    sent = steps = 0
    held = [[{end} for _ in range(parts)] for end in range(parts)]
    for step in range(2 * (parts - 1)):
        passed = []
        for end in range(parts):
            place = (end - step) % parts if step < parts - 1 else (end + 1 - (step - (parts - 1))) % parts
            passed.append((place, held[end][place]))
        for end, (place, what) in enumerate(passed):
            held[(end + 1) % parts][place] = held[(end + 1) % parts][place] | what
        sent, steps = sent + chunk, steps + 1
    assert all(place == set(range(parts)) for end in held for place in end)
    return sent, steps


@pytest.mark.parametrize("gpus", [2, 4, 8])
def test_a_ring_that_is_gone_round_sends_what_is_counted(gpus: int) -> None:
    sent, steps = ring(gpus, 2 * LLAMA.hidden)
    step = transfers.tensor_parallel_step(LLAMA, gpus)
    assert step.moved == 2 * LLAMA.layers * sent
    assert step.messages == 2 * LLAMA.layers * steps
    assert step.size == 2 * LLAMA.hidden / gpus


def test_one_gpu_has_nothing_to_send() -> None:
    for alone in (transfers.gradient_all_reduce(LLAMA, 1), transfers.tensor_parallel_step(LLAMA, 1, 4096)):
        assert alone == transfers.Transfer(0, 0)
        assert alone.size == 0
        assert transfers.time_to_move(alone, "pcie-3-x16", latency=1.0) == 0


def test_the_activations_of_a_published_example() -> None:
    """4096 tokens of 8192 numbers in 16 bits over 8 GPUs, one all-reduce: 0.26 ms over an H100's NVLink."""
    shape = presets.shape("llama-3.1-70b")
    assert shape.hidden == 8192
    whole = transfers.tensor_parallel_step(shape, 8, 4096)
    one = transfers.Transfer(whole.moved / (2 * shape.layers), whole.messages // (2 * shape.layers))
    assert one.messages == 14
    assert transfers.time_to_move(one, "nvlink-4") == pytest.approx(2 * 7 / 8 * 8192 * 4096 * 2 / 450e9)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: transfers.model_weights(LLAMA, "fp64"), "weights is fp64; choose one of bf16, fp32"),
        (lambda: transfers.kv_cache(LLAMA, 0, 1), "batch is 0; it must be a whole number from 1"),
        (lambda: transfers.kv_cache(LLAMA, 1, 131_073), "context is 131073; the model knows 131072 positions."),
        (lambda: transfers.gradient_all_reduce(LLAMA, 0), "gpus is 0; it must be a whole number from 1"),
        (lambda: transfers.gradient_all_reduce(LLAMA, -2), "gpus is -2"),
        (lambda: transfers.tensor_parallel_step(LLAMA, 5), "gpus is 5; it must divide the 32 attention heads."),
        (lambda: transfers.tensor_parallel_step(LLAMA, 2, 0), "tokens is 0"),
        (lambda: transfers.transfer("bytes", {"size": -1}), "size is -1; it must be a whole number from 0"),
        (lambda: transfers.transfer("bytes", {}), "To move a number of bytes needs size; say what it is."),
        (lambda: transfers.transfer("weights", {"weights": "bf16"}), "To move a model's weights, once needs model"),
        (lambda: transfers.transfer("water", {}), "There is no thing to move named 'water'"),
    ],
)
def test_things_that_make_no_sense_are_refused(make: object, says: str) -> None:
    assert callable(make)
    with pytest.raises(GpuguideError) as error:
        make()
    assert says in str(error.value)


def pipelined(load: float, compute: float, layers: int, passes: int) -> float:
    """Return when the last pass ends, moment by moment: one layer loads at a time, into either of two buffers."""
    loaded = computed = 0.0
    ends: list[float] = []
    for place in range(passes * layers):
        buffer_free = ends[place - 2] if place >= 2 else 0.0
        loaded = max(loaded, buffer_free) + load
        computed = max(computed, loaded) + compute
        ends.append(computed)
    return computed


@given(st.floats(1e-6, 1), st.floats(0, 1), st.integers(1, 40))
def test_an_offloaded_pass_is_as_long_as_its_pipeline(load: float, compute: float, layers: int) -> None:
    found = transfers.OffloadedForward(load, compute, layers)
    assert found.time == pytest.approx(pipelined(load, compute, layers, 1))
    many = pipelined(load, compute, layers, 6) - pipelined(load, compute, layers, 5)
    assert found.steady_time == pytest.approx(many)
    assert found.bound == ("link" if load > compute else "compute")


def test_offloading_by_hand() -> None:
    found = transfers.offloaded_forward(LLAMA, "pcie-5-x16", 1e-3, efficiency=0.5, latency=1e-5)
    size = transfers.offloaded_layers(LLAMA).moved / 32
    assert found.load == pytest.approx(1e-5 + size / (63.015e9 / 2))
    assert found.layers == 32
    assert found.steady_time == pytest.approx(32 * found.load)
    with pytest.raises(GpuguideError, match="The computation of a layer is -1; write seconds"):
        transfers.offloaded_forward(LLAMA, "pcie-5-x16", -1)


def test_double_the_size_or_half_the_rate_is_twice_the_time() -> None:
    """Times have the dimension of bytes over bytes a second: scaling one or the other shows."""
    link = links.get("nvlink-4")
    slow = replace(link, per_direction=replace(link.per_direction, value=link.per_direction.value / 2))
    moved = transfers.model_weights(LLAMA)
    twice = transfers.Transfer(2 * moved.moved, moved.messages)
    time = transfers.time_to_move(moved, link)
    assert transfers.time_to_move(twice, link) == pytest.approx(2 * time)
    assert transfers.time_to_move(moved, slow) == pytest.approx(2 * time)
