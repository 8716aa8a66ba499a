"""Trainings of a small model, so small here that a processor is done with one at once."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from gpuguide.benchmarks.gradients import placement
from gpuguide.benchmarks.training import clipping, repeatable, runs, schedules, small_runs
from gpuguide.benchmarks.training.small_runs import Architecture, Plan, SmallRun
from gpuguide.hardware import device as devices
from gpuguide.measure import benchmark as declarations
from gpuguide.measure.benchmark import Keys, find_skip_reason, too_large
from gpuguide.models.gpt2 import GPT2Config
from gpuguide.training.schedules import Schedule

CPU = devices.cpu()
TINY = GPT2Config(vocab_size=64, context=16, layers=2, heads=2, hidden=32)
NAMES = ("training-runs", "schedules", "clipping", "norm-placement", "repeatable-step", "gradient-report")


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Train 20 steps of two windows on a text of few tokens."""
    stream = np.random.default_rng(0).integers(0, 8, 1000).astype(np.uint16)
    monkeypatch.setattr(small_runs, "SHAPE", TINY)
    monkeypatch.setitem(runs.SHAPES, "small", TINY)
    monkeypatch.setattr(small_runs, "WINDOWS", 40)
    monkeypatch.setattr(small_runs, "HELD_OUT", 4)
    monkeypatch.setattr(small_runs, "text", lambda: stream)
    monkeypatch.setattr(small_runs, "tokens", lambda: (None, torch.from_numpy(stream.astype(np.int64))))
    monkeypatch.setattr(runs, "COMPILED_UP_TO", 0)
    monkeypatch.setattr(placement, "STEPS", 10)
    monkeypatch.setattr(placement, "BATCH", 2)
    small_runs.end()
    yield
    small_runs.end()


def plan(**more: Any) -> Plan:
    return Plan(Architecture(TINY), 2, Schedule("cosine", 1e-2, 20, 2), **more)


def losses(owner: str, chosen: Plan) -> list[float]:
    return list(SmallRun(owner, chosen, "cpu").further()["training_loss"].samples)


def test_a_run_is_timed_in_pieces_and_learns() -> None:
    run = SmallRun("a", plan(), "cpu")
    assert [run.sample() > 0 for _ in range(small_runs.PIECES)] == [True] * small_runs.PIECES
    assert run.taken == 20
    found = run.further()
    assert found["diverged"].samples == (0.0,)
    assert len(found["training_loss"].samples) == len(found["gradient_norm"].samples) == 20
    assert abs(found["training_loss"].samples[0] - math.log(64)) < 0.2
    assert 1.5 < found["loss"].samples[0] < found["training_loss"].samples[0] - 0.3  # log(8) is the best there is


def test_a_run_is_repeated_to_the_bit_and_another_seed_is_another_run() -> None:
    first = losses("a", plan())
    assert losses("a", plan(seed=1)) != first
    assert losses("a", plan()) == first  # the step starts anew, whatever it trained meanwhile


def test_contenders_of_one_case_do_not_share_a_step() -> None:
    one, other = SmallRun("a", plan(), "cpu"), SmallRun("b", plan(), "cpu")
    for _ in range(small_runs.PIECES):
        one.sample()
        other.sample()
    assert one.further()["training_loss"] == other.further()["training_loss"]
    assert one.step is not other.step


def test_a_run_that_diverges_says_so_and_has_no_loss() -> None:
    def rate(step: int) -> float:
        return 1e-3 if step < 5 else math.nan

    found = SmallRun("a", replace(plan(), rate=rate), "cpu").further()
    assert found["diverged"].samples == (1.0,)
    assert "loss" not in found
    assert len(found["training_loss"].samples) == 6


def test_a_wrong_gradient_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = small_runs.make_step

    def wrong(*given: Any) -> Any:
        made = right(*given)
        loss = made.loss
        made.loss = lambda tokens, targets: loss(tokens, targets.roll(1, 1))
        return made

    monkeypatch.setattr(small_runs, "make_step", wrong)
    with pytest.raises(AssertionError, match="differ from fp32"):
        SmallRun("a", plan(), "cpu")


def test_bad_batches_are_where_they_are_planted() -> None:
    clean, bad = SmallRun("a", plan(), "cpu").batches, SmallRun("a", plan(bad_every=5), "cpu").batches
    changed = [number for number in range(20) if not torch.equal(clean[number], bad[number])]
    assert changed == [4, 9, 14, 19]


@pytest.mark.parametrize("count", [1, 59, 60, 61, 1000])
def test_points_are_means_of_parts_that_cover_all(count: int) -> None:
    values = [float(each) for each in range(count)]
    assert len(small_runs.means(values)) == min(count, small_runs.POINTS)
    assert small_runs.maxima(values)[-1] == count - 1
    assert small_runs.means([2.0] * count) == [2.0] * min(count, small_runs.POINTS)


# --- declarations ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_an_h100_has_the_memory_for_every_case(name: str) -> None:
    benchmark, device = declarations.get(name), replace(devices.fake("h100-sxm"), memory=80 * 10**9)
    assert benchmark.cases(device)
    assert not [keys for keys in benchmark.cases(device) if too_large(benchmark, keys, device)]


@pytest.mark.parametrize("batch", runs.BATCHES)
def test_pieces_divide_the_steps_of_every_batch(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert small_runs.WINDOWS % (batch * small_runs.PIECES) == 0


def test_the_map_has_56_points_and_seeds_where_the_best_rates_are() -> None:
    device = devices.fake("h100-sxm")
    found = [keys for keys in runs.cases(device) if keys["model"] == "small"]
    assert len({(keys["batch"], keys["learning_rate"]) for keys in found}) == 56
    assert len(found) == len({tuple(keys.values()) for keys in found}) == 120
    for batch in runs.BATCHES:
        seeded = {keys["learning_rate"] for keys in found if keys["batch"] == batch and keys["seed"] == 2}
        assert len(seeded) >= 3
    benchmark = declarations.get("training-runs")
    eager = [keys for keys in runs.cases(device) if find_skip_reason(benchmark, "eager", keys, device) is None]
    assert len(eager) == 1
    scaled = [keys for keys in runs.cases(device) if find_skip_reason(benchmark, "scaled-beta2", keys, device) is None]
    assert {keys["batch"] for keys in scaled} == {1, 4, 16}
    assert all(runs.is_near(int(keys["batch"]), float(keys["learning_rate"])) for keys in scaled)


@pytest.mark.parametrize("contender", ["fixed-beta2", "scaled-beta2", "eager"])
def test_the_map_trains(contender: str) -> None:
    keys: Keys = {"model": "small", "batch": 2, "learning_rate": 1e-2, "seed": 0}
    chosen = runs.plan(contender, keys)
    assert chosen.betas[1] == (0.95 if contender != "scaled-beta2" else 0.95 ** (2 / 256))
    assert chosen.num_steps == (20 if contender != "eager" else 2)
    assert runs.work(contender, CPU, keys).further()["loss"].samples[0] < math.log(64)


@pytest.mark.parametrize("contender", schedules.SCHEDULES)
def test_each_schedule_trains_at_the_rates_of_its_name(contender: str) -> None:
    keys: Keys = {"batch": 2, "learning_rate": 1e-2, "seed": 0}
    chosen = schedules.plan(contender, keys)
    rates = [chosen.rate(step) for step in range(chosen.num_steps)]
    assert max(rates) == pytest.approx(1e-2)
    assert (rates[0] == pytest.approx(1e-2)) == contender.endswith("no-warm-up")
    low = {"constant": 1.0, "cosine-climbing": 0.9, "cosine-micro-steps": 0.85}
    expected = next((share for name, share in low.items() if contender.startswith(name)), None)
    assert rates[-1] > expected * 1e-2 * 0.99 if expected else rates[-1] < 0.4e-2
    assert schedules.work(contender, CPU, keys).further()["diverged"].samples == (0.0,)


@pytest.mark.parametrize("contender", clipping.CLIPS)
def test_clipping_keeps_the_norms_from_before_it(contender: str) -> None:
    keys: Keys = {"batch": 2, "bad": True, "learning_rate": 1e-2, "seed": 0}
    found = clipping.work(contender, CPU, keys).further()
    assert max(found["gradient_norm"].samples) > 0.1


@pytest.mark.parametrize("contender", placement.WIRED)
def test_each_wiring_has_its_gradients_by_layer(contender: str) -> None:
    keys: Keys = {"layers": 2, "warm_up": 2, "learning_rate": 1e-3, "seed": 0}
    found = placement.work(contender, CPU, keys).further()
    assert len(found["gradient_by_layer"].samples) == 2
    assert len(found["training_loss"].samples) == 10


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("kernel", ["math", "triton"])
def test_a_processor_repeats_a_step_to_the_bit(kernel: str, strict: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = np.random.default_rng(0).integers(0, 64, 1000).astype(np.uint16)
    monkeypatch.setattr("gpuguide.benchmarks.training.contenders.text", lambda: stream)
    monkeypatch.setattr(repeatable, "ACCEPTED", 0.05)
    keys: Keys = {"attention": kernel, "strict": strict, "batch": 2, "seq_len": 16}
    made = repeatable.work("eager", CPU, keys, TINY)
    assert made.check is not None
    made.check()
    made.calls[0]()
    found = {name: metric.samples[0] for name, metric in made.further().items()}
    assert found == {"changed_tensors": 0, "same_bits": 1, "largest_change": 0}
    assert not torch.are_deterministic_algorithms_enabled()


def test_strict_cases_are_those_that_pytorch_has_kernels_for(monkeypatch: pytest.MonkeyPatch) -> None:
    device, benchmark = devices.fake("h100-sxm"), declarations.get("repeatable-step")

    def measured(contender: str) -> set[tuple[object, object]]:
        return {
            (keys["attention"], keys["strict"])
            for keys in benchmark.cases(device)
            if find_skip_reason(benchmark, contender, keys, device) is None
        }

    monkeypatch.setenv(repeatable.WORKSPACE, ":4096:8")
    everything = {(kernel, strict) for kernel in repeatable.KERNELS for strict in (False, True)}
    assert measured("eager") == measured("graph") == everything - {("cudnn", True)}
    assert measured("compile") == {("flash", False), ("flash", True)}
    monkeypatch.delenv(repeatable.WORKSPACE)
    assert measured("eager") == {(kernel, False) for kernel in repeatable.KERNELS}


def test_a_step_that_changes_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = np.random.default_rng(0).integers(0, 64, 1000).astype(np.uint16)
    monkeypatch.setattr("gpuguide.benchmarks.training.contenders.text", lambda: stream)
    keys: Keys = {"attention": "math", "strict": False, "batch": 2, "seq_len": 16}
    right = repeatable.whole_loss
    monkeypatch.setattr(repeatable, "whole_loss", lambda model: lambda *batch: right(model)(*batch) * torch.rand(()))
    made = repeatable.work("eager", CPU, keys, TINY)
    assert made.further()["changed_tensors"].samples[0] > 10
    assert made.check is not None
    with pytest.raises(AssertionError, match="differ from fp32"):
        made.check()


@pytest.mark.gpu
@pytest.mark.parametrize("rungs", [small_runs.CAPTURED, small_runs.COMPILED])
def test_a_captured_run_is_that_of_single_kernels_and_starts_anew(rungs: frozenset[str]) -> None:
    slow = replace(plan(), rate=lambda step: 1e-3)  # a high rate makes much of the last bits
    eager = SmallRun("eager", replace(slow, rungs=small_runs.EAGER), "cuda").further()
    first, other, again = (
        SmallRun("graph", replace(slow, rungs=rungs, seed=seed), "cuda").further() for seed in (0, 1, 0)
    )
    losses = [each["training_loss"].samples for each in (eager, first, other, again)]
    assert losses[1] == pytest.approx(losses[0], abs=5e-3)
    assert losses[3] == pytest.approx(losses[1], abs=5e-3)
    assert losses[2] != pytest.approx(losses[1], abs=5e-3)
    assert max(first["gradient_norm"].samples) > 0.1


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", repeatable.KERNELS)
@pytest.mark.parametrize("way", repeatable.WAYS)
def test_every_kernel_passes_its_check(kernel: str, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = np.random.default_rng(0).integers(0, 64, 9000).astype(np.uint16)
    monkeypatch.setattr("gpuguide.benchmarks.training.contenders.text", lambda: stream)
    config = GPT2Config(vocab_size=64, context=256, layers=2, heads=2, hidden=128)
    for strict in (False, True):
        keys: Keys = {"attention": kernel, "strict": strict, "batch": 2, "seq_len": 256}
        if repeatable.left_out(way, devices.current(), keys):
            continue
        made = repeatable.work(way, devices.current(), keys, config)
        assert made.check is not None
        made.check()
        assert made.further()["largest_change"].samples[0] < 0.1
