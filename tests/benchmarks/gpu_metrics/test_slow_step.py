"""The training step that is mended one change at a time: on a fake device, and on a processor with a made-up driver."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_nvml import FakeNvml

from gpuguide.benchmarks.gpu_metrics import slow_step
from gpuguide.benchmarks.gpu_metrics.slow_step import (
    CHANGES,
    SLOW_TRAINING_STEP,
    VARIANTS,
    LoopVariant,
    Training,
    WrittenOut,
)
from gpuguide.hardware import device as devices
from gpuguide.hardware.device import Device
from gpuguide.measure import records, runner, traces
from gpuguide.measure.benchmark import too_large
from gpuguide.models.gpt2 import GPT2Attention, GPT2Config

BATCH_SECONDS = 0.002
STEP_SECONDS = 0.01


@pytest.fixture
def small(nvml: FakeNvml, clock: Any, monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    """Let the model be tiny, the documents few, and watching short; how long a step takes is made up."""
    slow_step.documents.cache_clear()
    monkeypatch.setattr(slow_step, "SHAPE", GPT2Config(2048, context=16, layers=2, heads=2, hidden=32))
    monkeypatch.setattr(slow_step, "documents", lambda: ["def one(): return 1\n" * 40, "x = [2, 3, 5, 7]\n" * 40])
    for name, value in {"WARM_SECONDS": 0.02, "WATCHED_SECONDS": 0.3, "INTERVAL": 0.02}.items():
        monkeypatch.setattr(slow_step, name, value)
    monkeypatch.setattr(torch, "compile", lambda function: function)
    train_on, batches = Training.train_on, slow_step.batches

    def takes_its_time(training: Training, tokens: torch.Tensor) -> None:
        train_on(training, tokens)
        clock.sleep(STEP_SECONDS)

    def come_in_time(variant: LoopVariant) -> Iterator[torch.Tensor]:
        for batch in batches(variant):
            clock.sleep(BATCH_SECONDS)
            yield batch

    monkeypatch.setattr(slow_step, "time", clock)
    monkeypatch.setattr(Training, "train_on", takes_its_time)
    monkeypatch.setattr(slow_step, "batches", come_in_time)
    return nvml


def test_each_change_is_one_change() -> None:
    variants = list(VARIANTS.values())
    assert variants[0] == LoopVariant()
    for before, after in itertools.pairwise(variants):
        differing = [name for name in vars(before) if getattr(before, name) != getattr(after, name)]
        assert len(differing) == 1
    assert list(CHANGES) == list(VARIANTS)


@pytest.mark.parametrize("step", VARIANTS)
def test_each_way_trains_and_leaves_its_readings(small: FakeNvml, pretended_gpu: Device, step: str) -> None:
    (case,) = runner.measure_case(SLOW_TRAINING_STEP, {"step": step}, pretended_gpu)
    assert (case.status, case.reason, case.correct) == ("ok", "", "yes")
    found = case.measured
    assert found["time"].summary.n == slow_step.SAMPLES
    assert found["time"].summary.median == pytest.approx(BATCH_SECONDS + STEP_SECONDS)
    share = BATCH_SECONDS / (BATCH_SECONDS + STEP_SECONDS)
    assert found["loading"].samples[0] == pytest.approx(share)
    assert found["starved"].samples[0] == pytest.approx(share)
    assert found["mean_throughput"].unit == "token/s"
    assert case.metrics["throughput"].summary.median == pytest.approx(
        VARIANTS[step].batch * slow_step.SHAPE.context / found["time"].summary.median, rel=0.1
    )
    assert found["peak_memory"].samples == (7.0,)
    assert set(found["sm_activity"].samples) == {0.2}
    assert found["power"].samples[0] == 101  # the second GPU, which the UUID names


def test_the_record_gives_the_traces_back(small: FakeNvml, pretended_gpu: Device, tmp_path: Path) -> None:
    short = replace(SLOW_TRAINING_STEP, cases=lambda device: [{"step": "as-found"}])
    runner.run([short], pretended_gpu, tmp_path, commit="c0ffee")
    record = records.read(tmp_path / "a-processor" / "slow-training-step.json")
    assert not record.stale
    assert traces.find_case_trace(record, record.case("nvml", step="as-found"))["tensor_activity"].max() > 0


def test_attention_written_out_is_the_models_own() -> None:
    torch.manual_seed(0)
    config = GPT2Config(64, context=24, layers=1, heads=4, hidden=32)
    layers, written_out = GPT2Attention(config), WrittenOut(config)
    written_out.load_state_dict(layers.state_dict())
    hidden = torch.randn(3, 24, 32)
    torch.testing.assert_close(written_out(hidden), layers(hidden))


@pytest.mark.parametrize("fused", [False, True])
def test_the_loop_uses_the_attention_that_it_says(small: FakeNvml, fused: bool) -> None:
    attention = Training(LoopVariant(fused_attention=fused), "cpu").model.blocks[0].attention
    assert isinstance(attention, WrittenOut) == (not fused)


def test_both_ways_of_tokenising_give_the_same_batches(small: FakeNvml) -> None:
    each_time, once = slow_step.batches(LoopVariant()), slow_step.batches(LoopVariant(tokenised_once=True))
    for _ in range(3):
        batch = next(each_time)
        assert torch.equal(batch, next(once))
        assert batch.shape == (8, slow_step.SHAPE.context + 1)


def test_a_loss_that_is_wrong_is_found_out(small: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training(LoopVariant(), "cpu")
    training.loss_of = lambda model, tokens, mixed: 1.1 * slow_step.loss_of(model, tokens, mixed)
    with pytest.raises(AssertionError, match="in fp32"):
        slow_step.check(training)


def test_a_step_that_does_not_train_is_found_out(small: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training(LoopVariant(), "cpu")
    monkeypatch.setattr(training.optimizer, "step", lambda: None)
    with pytest.raises(AssertionError, match="the loss went from"):
        slow_step.check(training)


def test_the_gpu_starves_while_the_host_builds_a_batch(small: FakeNvml, clock: Any) -> None:
    training = Training(LoopVariant(), "cpu")
    tokens = next(training.batches)

    def slow() -> Iterator[torch.Tensor]:
        while True:
            clock.sleep(0.01)
            yield tokens

    training.batches = slow()
    training.run(0.2)
    pauses = len(training.marks) - 1
    assert len(training.starved_seconds()) == len(training.step_seconds()) == pauses
    assert training.loading == pytest.approx(0.01 * (pauses + 1))
    assert sum(training.starved_seconds()) == pytest.approx(0.01 * pauses)
    assert sum(training.step_seconds()) == pytest.approx((0.01 + STEP_SECONDS) * pauses)


def test_what_does_not_fit_is_left_out() -> None:
    device = replace(devices.fake("h100-sxm"), memory=24 * 10**9)
    left_out = {
        keys["step"] for keys in SLOW_TRAINING_STEP.cases(device) if too_large(SLOW_TRAINING_STEP, keys, device)
    }
    assert {"as-found", "larger-batch"} <= left_out
    assert "no-waiting" not in left_out


def test_a_processor_has_no_such_driver() -> None:
    assert SLOW_TRAINING_STEP.cases(devices.cpu()) == []


@pytest.mark.gpu
@pytest.mark.needs("pynvml")
@pytest.mark.parametrize("step", ["as-found", "no-waiting"])
def test_on_a_real_gpu(monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    monkeypatch.setattr(slow_step, "WATCHED_SECONDS", 2.0)
    (case,) = runner.measure_case(SLOW_TRAINING_STEP, {"step": step}, devices.current())
    assert (case.status, case.reason, case.correct) == ("ok", "", "yes")
