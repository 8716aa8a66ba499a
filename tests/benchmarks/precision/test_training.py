from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from fake_devices import on
from torch import nn

from gpuguide.benchmarks.precision import preparing, training
from gpuguide.benchmarks.precision.preparing import METHODS
from gpuguide.benchmarks.precision.training import TrainingRun
from gpuguide.hardware import device as devices
from gpuguide.measure import benchmark as declarations
from gpuguide.measure.benchmark import find_skip_reason, too_large
from gpuguide.models.gpt2 import GPT2Config
from gpuguide.precision.fp8 import Fp8Linear

TRAINING = declarations.get("train-step-precision")
every_way = pytest.mark.parametrize("precision", METHODS)


def keys_of(precision: str, batch: int = 2, seq_len: int = 32) -> dict[str, int | str]:
    return {"precision": precision, "batch": batch, "seq_len": seq_len}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A model, a text and a training that a processor is done with at once."""
    drawn = torch.randint(300, (4000,), generator=torch.Generator().manual_seed(1))
    monkeypatch.setattr(training, "SHAPE", GPT2Config(vocab_size=304, context=64, layers=2, heads=2, hidden=64))
    monkeypatch.setattr(training, "tokens", lambda: (drawn, drawn[:500]))
    for name, value in {"STEPS": 12, "WARM_UP": 3, "WINDOWS": 4, "WARMUP_STEPS": 4}.items():
        monkeypatch.setattr(training, name, value)
    torch.manual_seed(0)
    yield
    torch.compiler.reset()


def run_of(precision: str) -> TrainingRun:
    return TrainingRun(preparing.prepare_fp8, keys_of(precision), "cpu")


@pytest.mark.parametrize(("gigabytes", "fits"), [(8, False), (16, False), (24, True), (48, True)])
def test_what_does_not_fit_is_left_out(gigabytes: int, fits: bool) -> None:
    device = on(gigabytes)
    assert all((too_large(TRAINING, keys, device) is None) == fits for keys in TRAINING.cases(device))


@pytest.mark.parametrize(
    ("gpu", "lacking"),
    [("t4", {"tf32", "bf16", "pure-bf16", "fp8"}), ("a100-sxm-80gb", {"fp8"}), ("h100-sxm", set())],
)
def test_a_precision_that_a_gpu_lacks_is_skipped(gpu: str, lacking: set[str]) -> None:
    device = replace(devices.fake(gpu), memory=80 * 10**9)
    found = {precision for precision in METHODS if find_skip_reason(TRAINING, "eager", keys_of(precision), device)}
    assert found == lacking


@every_way
def test_a_run_goes_on_from_the_first_step_to_the_last(precision: str, small: None) -> None:
    run = run_of(precision)
    run.check()
    assert len(run.outcomes) == 3
    assert run.sample() > 0
    assert len(run.outcomes) == 4
    found = run.further()
    assert {name: metric.unit for name, metric in found.items()} == {
        "loss": "nat",
        "training_loss": "nat",
        "skipped_steps": "1",
    }
    losses = found["training_loss"].samples
    assert len(losses) == 12
    assert abs(losses[0] - math.log(304)) < 0.1
    assert abs(found["loss"].samples[0] - math.log(304)) < 0.3
    assert found["skipped_steps"].samples == (0.0,)


def test_a_run_without_a_check_takes_the_first_steps_before_it_is_timed(small: None) -> None:
    run = run_of("fp32")
    run.sample()
    assert len(run.outcomes) == 4


def test_the_loss_falls_and_that_of_bf16_with_it(small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    text = torch.arange(4000) % 7
    monkeypatch.setattr(training, "tokens", lambda: (text, text[:500]))
    monkeypatch.setattr(training, "STEPS", 60)
    losses = {}
    for precision in ("fp32", "bf16", "fp8"):
        torch.manual_seed(0)
        losses[precision] = run_of(precision).further()["loss"].samples[0]
    assert losses["fp32"] < 5.0
    assert losses["bf16"] == pytest.approx(losses["fp32"], abs=0.02)
    assert losses["fp8"] == pytest.approx(losses["fp32"], abs=0.05)
    assert len(set(losses.values())) == 3


def test_a_step_that_is_not_taken_is_counted_and_the_check_waits_for_one_that_is(small: None) -> None:
    run = run_of("fp16")
    run.training.scaler.current = 2.0**100
    run.step()
    assert not run.outcomes[0].stepped
    assert run.further()["skipped_steps"].samples[0] >= 1
    other = run_of("fp16")
    other.method = replace(other.method, scaled=True)
    assert other.gradient_error() < 5e-3


@every_way
def test_the_check_changes_nothing(precision: str, small: None) -> None:
    torch.manual_seed(3)
    run = run_of(precision)
    before = [weight.detach().clone() for weight in run.model.parameters()]
    assert 0 < run.gradient_error() < run.method.accepted
    assert all(torch.equal(old, new) for old, new in zip(before, run.model.parameters(), strict=True))
    assert not run.training.optimizer.state
    assert run.training.optimizer.param_groups[0]["lr"] == pytest.approx(training.LEARNING_RATE / 4)
    assert run.training.clip == 1.0
    torch.manual_seed(3)
    other = run_of(precision)
    run.step()
    other.step()
    assert run.outcomes == other.outcomes


@every_way
def test_wrong_gradients_are_found(precision: str, small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of(precision)
    wrong = run.loss_sum
    run.loss_sum = lambda logits, targets: wrong(logits, targets.roll(1))
    with pytest.raises(AssertionError, match="the relative error of the gradients is"):
        run.check()


def test_each_precision_is_what_it_says(small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    def look(precision: str) -> None:
        run = run_of(precision)
        run.model.get_submodule("blocks.0.attention").register_forward_hook(
            lambda module, inputs, output: seen.update({precision: output.dtype})
        )
        run.step()
        assert run.method.matmul_precision == ("high" if precision == "tf32" else "highest")
        assert run.training.scaler.enabled == (precision == "fp16")
        layers = [type(each) for each in run.model.modules() if isinstance(each, nn.Linear)]
        assert (layers.count(Fp8Linear), layers.count(nn.Linear)) == ((8, 1) if precision == "fp8" else (0, 9))

    for precision in METHODS:
        look(precision)
    assert seen == {
        "fp32": torch.float32,
        "tf32": torch.float32,
        "fp16": torch.float16,
        "bf16": torch.bfloat16,
        "pure-bf16": torch.bfloat16,
        "fp8": torch.bfloat16,
    }


def test_fp32_products_are_computed_as_a_precision_says_and_afterwards_as_before(
    small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    run = run_of("tf32")
    right = run.loss_sum

    def look(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        seen.append((torch.get_float32_matmul_precision(), torch.backends.cuda.matmul.fp32_precision))
        return right(logits, targets)

    run.loss_sum = look
    run.step()
    assert seen == [("high", "tf32")]
    assert torch.get_float32_matmul_precision() == "highest"
    assert torch.backends.cuda.matmul.fp32_precision != "tf32"
    assert not torch.backends.cuda.matmul.allow_tf32  # what the compiler asks


def test_blocks_are_compiled_once_for_all_layers_and_train_alike(small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    graphs = []

    def count(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        graphs.append(graph)
        return graph

    compile_block = nn.Module.compile
    monkeypatch.setattr(nn.Module, "compile", lambda self, **options: compile_block(self, backend=count, **options))
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    losses = []
    for prepare in (preparing.compile_blocks, preparing.prepare_fp8):
        torch.manual_seed(0)
        run = TrainingRun(prepare, keys_of("bf16"), "cpu")
        run.check()
        losses.append(run.further()["loss"].samples[0])
    assert len(graphs) == 1
    assert losses[0] == pytest.approx(losses[1], abs=1e-3)


def test_the_learning_rate_rises_and_falls(small: None) -> None:
    shares = [training.lr_multiplier(step) for step in range(13)]
    assert shares[:4] == [0.25, 0.5, 0.75, 1.0]
    assert shares[3:] == sorted(shares[3:], reverse=True)
    assert shares[12] == pytest.approx(0.1)


def test_the_text_is_the_library_of_this_python_and_no_window_is_in_both_parts() -> None:
    training_text, validation_text = training.tokens()
    assert len(training_text) > 10 * len(validation_text) > 500_000
    steps, held_out = training.draw_batches(keys_of("fp32", 4, 100), "cpu")
    assert steps.shape == (200, 4, 101)
    assert held_out.shape == (64, 101)
    assert torch.equal(held_out[0], validation_text[:101])


@pytest.mark.gpu
@pytest.mark.parametrize("name", list(TRAINING.contenders))
@every_way
def test_every_contender_trains_or_is_skipped_with_a_reason(name: str, precision: str, small: None) -> None:
    device = devices.current()
    keys = keys_of(precision, 4, 64)
    if why := find_skip_reason(TRAINING, name, keys, device):
        pytest.skip(why)
    work = TRAINING.contenders[name].build(device, keys)
    assert work.check is not None
    assert work.sample is not None
    work.check()
    assert work.sample() > 0
    found = work.further()
    assert ("peak_memory" in found) != name.endswith("-graph")
    assert found["loss"].samples[0] == pytest.approx(math.log(304), abs=0.3)


@pytest.mark.gpu
@every_way
def test_captured_blocks_train_as_compiled_ones(precision: str, small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph that read copies of the weights as they were at its capture would train the head and nothing else."""
    if why := find_skip_reason(TRAINING, "compile-graph", keys_of(precision), devices.current()):
        pytest.skip(why)
    text = torch.arange(4000) % 7
    monkeypatch.setattr(training, "tokens", lambda: (text, text[:500]))
    monkeypatch.setattr(training, "STEPS", 60)
    losses, moved = [], []
    for prepare in (preparing.compile_blocks, preparing.capture_blocks):
        torch.manual_seed(0)
        run = TrainingRun(prepare, keys_of(precision), "cuda")
        begun = [weight.detach().clone() for weight in run.model.blocks.parameters()]
        run.further()
        pairs = zip(run.model.blocks.parameters(), begun, strict=True)
        losses.append(run.outcomes[-1].loss)
        moved.append(torch.cat([(weight.detach() - before).double().flatten() for weight, before in pairs]))
    assert losses[1] == pytest.approx(losses[0], abs=0.05)
    assert torch.cosine_similarity(*moved, dim=0) > 0.8
