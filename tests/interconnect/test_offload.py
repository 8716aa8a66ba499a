from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from gpuguide.interconnect.offload import OffloadedLayers

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


class Shifted(nn.Module):
    """A layer with parameters of several types, a buffer, a tensor used twice, and a further argument."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.same = self.norm.weight
        self.scale = nn.Parameter(torch.randn(3, dtype=torch.float64))
        self.register_buffer("shift", torch.randn(width, 2)[:, 0])  # not contiguous in its own memory

    def forward(self, values: torch.Tensor, factor: float = 1.0) -> torch.Tensor:
        out = self.norm(self.linear(values)) * self.same * self.scale.sum().float() + self.shift
        return torch.tanh(out) * factor


def some_layers(count: int) -> list[nn.Module]:
    torch.manual_seed(0)
    return [Shifted(32) if index % 3 else nn.Sequential(nn.Linear(32, 70), nn.Linear(70, 32)) for index in range(count)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("count", [1, 2, 3, 6])
def test_results_are_those_of_the_resident_model(count: int, overlap: bool, device: str) -> None:
    layers = some_layers(count)
    resident = nn.Sequential(*copy.deepcopy(layers)).to(device)
    offloaded = OffloadedLayers(layers, device, overlap=overlap)
    with torch.no_grad():
        for _ in range(3):
            values = torch.randn(5, 32, device=device)
            assert torch.equal(offloaded(values), resident(values))


def test_what_else_is_given_reaches_every_layer() -> None:
    torch.manual_seed(0)
    layers = [Shifted(32), Shifted(32)]
    first, second = copy.deepcopy(layers)
    values = torch.randn(2, 32)
    with torch.no_grad():
        assert torch.equal(OffloadedLayers(layers, "cpu")(values, 2.0), second(first(values, 2.0), 2.0))


def test_the_device_holds_two_layers_whatever_the_number() -> None:
    offloaded = OffloadedLayers([nn.Linear(64, 64) for _ in range(9)], "cpu")
    held = {each.untyped_storage().data_ptr() for each in offloaded.parameters()}
    assert len(held) == 2
    assert offloaded.bytes >= 9 * (64 * 64 + 64) * 4
    assert sum(each.nbytes for each in offloaded.buffers_on_device) < offloaded.bytes / 4


def test_copying_alone_brings_the_last_layers() -> None:
    layers = [nn.Linear(8, 8) for _ in range(4)]
    right = [layer.weight.detach().clone() for layer in layers]
    OffloadedLayers(layers, "cpu").copy_only()
    assert torch.equal(layers[2].weight, right[2])
    assert torch.equal(layers[3].weight, right[3])


def test_layers_that_cannot_be_taken() -> None:
    with pytest.raises(ValueError, match="one layer or more"):
        OffloadedLayers([], "cpu")
    tied = nn.Linear(4, 4)
    with pytest.raises(ValueError, match="two layers share a tensor"):
        OffloadedLayers([tied, nn.Sequential(tied)], "cpu")
