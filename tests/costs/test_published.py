"""The memory model against what others measured: at least 20 cases, with the 48 configurations of our own records."""

from __future__ import annotations

import statistics

import pytest

from gpuguide.costs import memory, presets, published
from gpuguide.measure import store

COMPARED = [case for case in published.cases() if not case.differs]


@pytest.mark.parametrize("case", COMPARED, ids=lambda case: f"{case.source.key}: {case.name}")
def test_a_published_size_is_predicted(case: published.PublishedCase) -> None:
    """Weights and caches to a percent; what a process takes to a twelfth; training without our norms to a sixth."""
    allowed = 0.01 if case.part else 0.17 if case.setup.purpose == "train" else 0.12
    assert abs(case.error) <= allowed


def test_the_errors_are_small_in_the_middle() -> None:
    assert statistics.median(abs(case.error) for case in COMPARED) <= 0.04


def test_what_cannot_be_compared_says_why_and_every_source_was_looked_at() -> None:
    for case in published.cases():
        assert case.source.is_verified
        assert abs(case.error) < 0.35
        assert case.differs or abs(case.error) <= 0.17


@pytest.mark.parametrize(("model", "count"), [("llama-2-7b", 4_194_304), ("llama-2-13b", 6_553_600)])
def test_adapters_have_as_many_parameters_as_litgpt_prints(model: str, count: int) -> None:
    """Rank 8 on queries and values, from the resource tables of LitGPT."""
    setup = memory.Setup(lora_rank=8, adapted="query-value")
    assert memory.values(presets.get(model).shape, setup)["adapters"] == count


def test_the_cache_that_llama_cpp_logs_for_a_model_of_thirty_billions() -> None:
    """60 layers of 6656 numbers, 512 positions in fp32: 1560 MiB (abetlen/llama-cpp-python, issue 66)."""
    shape = memory.Shape(60, 6656, 52, 52, 128, 17920, 32000, 2048)
    setup = memory.Setup("generate", "bf16", seq_len=512, cache="fp32")
    assert memory.cache_bytes(shape, setup) == 1560 * 2**20


def test_the_bits_a_parameter_of_qlora() -> None:
    """Double quantisation brings the scales from 0.5 to 0.127 bits a parameter (QLoRA, section 3)."""
    assert 8 * memory.ELEMENT_SIZE["nf4"] == pytest.approx(4.127, abs=5e-4)


def test_full_training_takes_sixteen_bytes_a_parameter_before_activations() -> None:
    """As ZeRO counts them for mixed precision, section 3.1: at least 24 GB for 1.5 billion parameters."""
    shape = presets.get("gpt2-xl").shape
    parts = memory.predict(shape, memory.Setup(seq_len=1)).moments[-1].parts
    states = parts["weights"] + parts["gradients"] + parts["optimizer"]
    assert states == 16 * shape.parameters()
    assert states > 24e9


def more(who: str, model: str, one: dict[str, object], other: dict[str, object]) -> float:
    """Bytes by which the measured peak of one way of adapting is above that of another."""
    record = store.load_published("lora-step")
    peaks = [record.median(who, "peak_memory", model=model, **keys) for keys in (one, other)]
    return peaks[0] - peaks[1]


def more_predicted(preset: str, one: dict[str, object], other: dict[str, object]) -> float:
    shape = presets.get(preset).shape
    setups = [
        memory.Setup(batch=16, seq_len=512, lora_rank=keys["rank"], adapted=keys["targets"]) for keys in (one, other)
    ]
    totals = [memory.predict(shape, setup).total for setup in setups]
    return totals[0] - totals[1]


@pytest.mark.parametrize(("model", "preset"), [("gpt2-small", "gpt2"), ("llama-1b-shape", "llama-3.2-1b")])
def test_what_adapters_beside_the_feed_forward_part_add_was_measured(model: str, preset: str) -> None:
    """Mostly the inputs of matrices that an adapter reads, which are not kept without it."""
    everywhere, attention = {"rank": 16, "targets": "all"}, {"rank": 16, "targets": "attention"}
    measured = more("gpuguide", model, everywhere, attention)
    assert more_predicted(preset, everywhere, attention) == pytest.approx(measured, rel=0.03)


def test_what_a_higher_rank_adds_was_measured() -> None:
    """Weights, Adam's two averages and the copy of autocast; PEFT's adapters are in fp32 and apart, as counted here."""
    high, low = {"rank": 64, "targets": "all"}, {"rank": 8, "targets": "all"}
    measured = more("peft", "llama-1b-shape", high, low)
    assert more_predicted("llama-3.2-1b", high, low) == pytest.approx(measured, rel=0.03)
