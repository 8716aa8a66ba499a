"""Benchmarks of training steps, with a model so small that a processor trains it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile

from gpuguide.benchmarks.training import batch_speed, contenders, data_parallel, ladder, loading
from gpuguide.hardware import device as devices
from gpuguide.interconnect.processes import Team
from gpuguide.measure import benchmark as declarations
from gpuguide.measure.benchmark import Keys, too_large
from gpuguide.models.gpt2 import GPT2Config
from gpuguide.training import slow
from gpuguide.training.rungs import ALL

CPU = devices.cpu()
TINY = GPT2Config(vocab_size=2048, context=32, layers=1, heads=2, hidden=32)
KEYS: Keys = {"batch": 4, "seq_len": 16, "compared": "alone"}
LADDER, BEYOND = declarations.get("training-ladder"), declarations.get("training-beyond")
COMPILED = ("compile", "graph")


@pytest.fixture(autouse=True)
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Train ten steps, and forget the reference of another test."""
    monkeypatch.setattr(ladder, "TRAINED", 10)
    monkeypatch.setattr(ladder, "LADDER_BATCH", (4, 16))
    ladder.reference_gradients.cache_clear()


def on(gigabytes: int) -> devices.Device:
    """Return a device that has everything but memory."""
    return replace(devices.fake("h200"), memory=gigabytes * 10**9)


@pytest.mark.parametrize(
    ("name", "rungs"), [(name, rungs) for name, rungs in contenders.ladder().items() if not rungs & set(COMPILED)]
)
def test_every_step_passes_its_check_and_trains(name: str, rungs: frozenset[str]) -> None:
    made = ladder.work(contenders.with_rungs(rungs, TINY), ladder.accepted_error(rungs), "alone", CPU, KEYS, TINY)
    assert made.check is not None
    made.check()
    made.calls[0]()
    found = made.further()
    assert found["error"].samples[0] <= ladder.accepted_error(rungs)
    assert 0 < found["loss"].samples[0] < np.log(2048)


@pytest.mark.parametrize("make", [contenders.nanogpt_recipe, contenders.best_fed, contenders.best_fp8])
def test_peers_and_feeders_pass_their_check(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    uncompiled(monkeypatch)
    made = ladder.work(lambda *given: make(*given, config=TINY), ladder.ACCEPTED["fp8"], None, CPU, KEYS, TINY)
    assert made.check is not None
    made.check()
    before = made.further()
    assert "loss" not in before


@pytest.mark.needs("transformers")
def test_gradients_of_transformers_are_matched_with_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    uncompiled(monkeypatch)
    made = ladder.work(
        lambda *given: contenders.hf_compile(*given, config=TINY), ladder.ACCEPTED["bf16"], None, CPU, KEYS, TINY
    )
    assert made.check is not None
    made.check()


def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the compiler out of all contenders."""
    right = contenders.settings
    monkeypatch.setattr(contenders, "settings", lambda **more: right(**{**more, "backend": None}))
    monkeypatch.setattr(contenders, "ALL", ALL - set(COMPILED))


def test_a_wrong_gradient_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*given: Any) -> Any:
        made = contenders.with_rungs({"attention"}, TINY)(*given)
        loss = made.step.loss
        made.step.loss = lambda tokens, targets: loss(tokens, targets.roll(1, 0))
        return made

    made = ladder.work(wrong, ladder.ACCEPTED["bf16"], None, CPU, KEYS, TINY)
    assert made.check is not None
    with pytest.raises(AssertionError, match="differ from fp32"):
        made.check()


def test_the_ladder_has_each_rung_in_its_place_left_out_and_alone() -> None:
    found = contenders.ladder()
    assert len(set(found.values())) == len(found) == 18
    assert found["best"] == ALL
    for name in ("attention", "compile", "optimizer", "loss"):
        assert found[f"only-{name}"] == {name}
        assert found[f"without-{name}"] == ALL - {name}


def test_each_contender_is_measured_beside_fp32_and_the_best() -> None:
    cases = LADDER.cases(on(141))
    measured = [
        {name for name, each in LADDER.contenders.items() if each.skip_reason(on(141), keys) is None} for keys in cases
    ]
    assert set().union(*measured) == set(LADDER.contenders)
    assert set.intersection(*measured) == {"fp32", "best"}


@pytest.mark.parametrize("benchmark", [LADDER, BEYOND, declarations.get("batch-speed")], ids=lambda each: each.name)
def test_an_h200_has_the_memory_for_every_case(benchmark: Any) -> None:
    assert not [keys for keys in benchmark.cases(on(141)) if too_large(benchmark, keys, on(141))]
    assert [keys for keys in benchmark.cases(on(16)) if too_large(benchmark, keys, on(16))]


def test_speed_by_batch_trains_one_batch() -> None:
    made = batch_speed.work(batch_speed.WAYS["eager"] - {"weights"}, CPU, KEYS, TINY)
    assert made.check is not None
    made.check()
    made.calls[0]()


@pytest.fixture
def token_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make files of tokens in a folder of the test."""
    loading.end()
    yield
    loading.end()


@pytest.mark.usefixtures("token_file")
@pytest.mark.parametrize("storage", loading.STORAGES)
@pytest.mark.parametrize("name", slow.BATCHES)
def test_all_ways_to_make_a_batch_make_the_same(storage: str, name: str) -> None:
    made = loading.work(slow.BATCHES[name], CPU, {"storage": storage, "batch": 3}, 10_000)
    assert made.check is not None
    made.check()
    made.calls[0]()
    assert made.further()["minor_faults"].samples[0] >= 0


@pytest.mark.usefixtures("token_file")
def test_a_wrong_batch_is_found() -> None:
    made = loading.work(lambda *given: slow.gather(*given).flip(0), CPU, {"storage": "ram", "batch": 3}, 10_000)
    assert made.check is not None
    with pytest.raises(AssertionError, match="another one"):
        made.check()


@pytest.mark.usefixtures("token_file")
def test_a_loader_gives_one_batch_after_another() -> None:
    made = loading.work_with_loader(0, CPU, {"storage": "mapped", "batch": 3}, 10_000)
    assert made.check is not None
    made.check()
    for _ in range(10):
        made.calls[0]()


def test_written_out_attention_is_that_of_pytorch() -> None:
    query, key, value = torch.randn(3, 2, 2, 7, 8, dtype=torch.float64)
    expected = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    torch.testing.assert_close(slow.written_out_attention(query, key, value), expected)


@pytest.mark.parametrize("name", [name for name in data_parallel.NAMES if name != "fsdp2"])
def test_ranks_keep_equal_parameters(name: str, team: Team) -> None:
    assert team.run(data_parallel.set_up, name, 2, 16, TINY, False) == [None] * team.size
    assert team.slowest(data_parallel.sample, name, 1) > 0


def test_shards_keep_equal_parameters(team: Team) -> None:
    assert team.run(data_parallel.set_up, "fsdp2", 2, 16, TINY, False) == [None] * team.size


@pytest.fixture(scope="module")
def team() -> Any:
    """Four processes."""
    contenders.text()  # the copies have it then
    with Team(4, device="cpu", start="fork") as found:
        yield found


@pytest.mark.slow
def test_each_contender_compiles_the_attention_kernel_that_it_asks_for() -> None:
    q = torch.randn(2, 4, 64, 32, requires_grad=True)
    called = {}
    for kernel in (SDPBackend.FLASH_ATTENTION, SDPBackend.MATH):
        torch.compiler.reset()
        attend = torch.compile(lambda x: functional.scaled_dot_product_attention(x, x, x, is_causal=True))
        with ladder.compiled_for_itself(), sdpa_kernel(kernel):
            attend(q).sum().backward()  # the graph is stored once its backward pass is compiled, too
            with profile(activities=[ProfilerActivity.CPU]) as profiled:
                attend(q)
        called[kernel] = {event.key for event in profiled.key_averages() if "flash_attention" in event.key}
    assert called[SDPBackend.FLASH_ATTENTION]
    assert not called[SDPBackend.MATH]
