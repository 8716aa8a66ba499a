"""Bits of two runs."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping

import numpy as np
import pytest
import torch
from torch import nn

from gpuguide.errors import GpuguideError
from gpuguide.training import repeat as repeating
from gpuguide.training.repeat import compare_bits, deterministic, repeat


def step() -> Mapping[str, torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(10, 8), nn.Dropout(0.5), nn.Linear(8, 10))
    model(torch.arange(10)).square().sum().backward()
    return {name: each.grad for name, each in model.named_parameters() if each.grad is not None}


def test_a_seeded_step_gives_the_same_bits() -> None:
    assert repeat(step, times=3) == []


def test_a_changed_bit_is_found_with_its_place_and_size() -> None:
    calls = iter(range(3))

    def run() -> Mapping[str, torch.Tensor]:
        values = torch.tensor([1.0, 4.0, -2.0])
        if next(calls) == 2:  # only the third run differs
            values[0] = torch.nextafter(values[0], torch.tensor(2.0))
        return {"a": values, "b": torch.zeros(2, dtype=torch.bfloat16)}

    (found,) = repeat(run, times=3)
    assert (found.name, found.count, found.values) == ("a", 1, 3)
    assert found.largest == pytest.approx(2**-23 / 4)
    assert str(found).startswith("a differs in 1 of 3 values")


def test_bits_are_compared_not_values() -> None:
    nan, zero = torch.tensor([math.nan, 0.0]), torch.tensor([0.0])
    assert compare_bits({"nan": nan}, {"nan": nan.clone()}) == []
    assert [each.count for each in compare_bits({"zero": zero}, {"zero": -zero})] == [1]
    scalar = torch.tensor(1.0)
    assert compare_bits({"scalar": scalar}, {"scalar": scalar.clone()}) == []
    assert [each.count for each in compare_bits({"t": torch.eye(3).T}, {"t": torch.ones(3, 3)})] == [6]


def test_other_tensors_say_so() -> None:
    one = torch.zeros(2)
    with pytest.raises(GpuguideError, match="Only one of the runs has b"):
        compare_bits({"a": one}, {"a": one, "b": one})
    with pytest.raises(GpuguideError, match=r"a is \(2,\) in torch.float32, and \(3,\)"):
        compare_bits({"a": one}, {"a": torch.zeros(3)})
    with pytest.raises(GpuguideError, match="times is 1"):
        repeat(step, times=1)


def test_deterministic_seeds_everything_and_leaves_settings_as_they_were() -> None:
    before = (torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark)
    drawn = []
    for _ in range(2):
        with deterministic(3):
            assert torch.are_deterministic_algorithms_enabled()
            assert not torch.backends.cudnn.benchmark
            drawn.append((random.random(), np.random.rand(), float(torch.rand(()))))  # noqa: NPY002
    assert drawn[0] == drawn[1]
    assert (torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark) == before


def test_a_gpu_without_the_setting_of_cublas_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.delenv(repeating.WORKSPACE, raising=False)
    with pytest.raises(GpuguideError, match="CUBLAS_WORKSPACE_CONFIG=:4096:8"), deterministic():
        pass


@pytest.mark.gpu
def test_atomic_additions_on_a_gpu_are_made_in_order_by_the_setting() -> None:
    index = torch.randint(4, (200_000,), device="cuda")
    values = torch.randn(200_000, 8, device="cuda")

    def run() -> Mapping[str, torch.Tensor]:
        return {"sum": torch.zeros(4, 8, device="cuda").index_add_(0, index, values)}

    with deterministic(warn_only=True):
        assert repeat(run, times=5) == []
