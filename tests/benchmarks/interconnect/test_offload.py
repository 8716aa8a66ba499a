"""The benchmark of layers that come over the link."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from gpuguide.benchmarks.interconnect import offload
from gpuguide.hardware import device as devices
from gpuguide.measure import benchmark as declarations
from gpuguide.measure import runner
from gpuguide.measure.benchmark import Work
from gpuguide.models import llama

CPU, H200 = devices.cpu(), devices.fake("h200")
OFFLOAD = declarations.get("offload")
TINY = llama.LlamaConfig(vocab_size=8, context=512, layers=5, heads=4, kv_heads=2, hidden=32, inner=48)
KEYS = {"tokens": 16}


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    yield
    OFFLOAD.end()
    assert offload.offload_layers.cache_info().currsize == 0


def work(name: str) -> Work:
    """Return a contender's work on a tiny model, whose layers are in the host's memory like a large one's."""
    found: Work = OFFLOAD.contenders[name].build(CPU, KEYS, shape=TINY)  # type: ignore[call-arg]
    return found


@pytest.mark.parametrize("name", list(OFFLOAD.contenders))
def test_every_contender_is_right_and_can_be_timed(name: str) -> None:
    found = work(name)
    assert found.check
    found.check()
    assert runner.case.sampler(found, CPU)() > 0


@pytest.mark.parametrize("name", ["overlapped", "one-after-the-other", "copy-only"])
def test_a_layer_that_does_not_arrive_whole_is_told(name: str) -> None:
    found = work(name)
    offload.offload_layers(TINY, "cpu").host[-1][-1024:] = 0
    assert found.check
    said = "layer 4 did not arrive whole" if name == "copy-only" else "of 512 numbers are not those"
    with pytest.raises(AssertionError, match=said):
        found.check()


def test_what_differs_or_is_not_finite_is_told() -> None:
    inputs = offload.Inputs.draw(TINY, 16, "cpu")
    right = offload.compute_expected(TINY, inputs, "cpu")
    offload.check(right.clone(), right)
    with pytest.raises(AssertionError, match="are not those"):
        offload.check(offload.compute_expected(replace(TINY, layers=4), inputs, "cpu"), right)
    with pytest.raises(AssertionError, match="not finite"):
        offload.check(right, torch.full_like(right, torch.nan))


def test_the_same_index_gives_the_same_weights_and_another_one_others() -> None:
    first, again, other = (offload.layer(TINY, index, "cpu") for index in (0, 0, 1))
    for one, same, different in zip(first.parameters(), again.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, same)
        assert one.ndim == 1 or not torch.equal(one, different)


def test_contenders_share_the_layers_of_the_host() -> None:
    first, second = work("overlapped"), work("one-after-the-other")
    model = offload.offload_layers(TINY, "cpu")
    assert offload.offload_layers.cache_info().currsize == 1
    first.calls[0]()
    assert model.overlap
    second.calls[0]()
    assert not model.overlap
    assert work("copy-only").rates["bandwidth"].per_call == model.bytes


def test_the_shape_is_that_of_seven_billion_parameters() -> None:
    assert offload.layer_bytes(TINY) == sum(
        parameter.nbytes for each in offload.layers(TINY, "cpu") for parameter in each.parameters()
    )
    assert 12.9e9 < offload.layer_bytes(offload.config_of()) < 13e9
    assert [keys["tokens"] for keys in OFFLOAD.cases(H200)] == [512, 8192]
    assert OFFLOAD.cases(CPU) == []


def test_a_small_gpu_leaves_out_the_resident_layers_only() -> None:
    small = replace(H200, memory=12 * 10**9)
    skipped = {
        name: declarations.find_skip_reason(OFFLOAD, name, {"tokens": 512}, small) for name in OFFLOAD.contenders
    }
    assert [name for name, why in skipped.items() if why] == ["resident"]
    assert OFFLOAD.contenders["resident"].skip_reason(H200, {"tokens": 8192}) is None
