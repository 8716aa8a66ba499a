"""Drawings of adapters: what they show is what the library counts, and what transformers stores."""

from __future__ import annotations

from figure_rows import rows_of
from torch import nn
from transformers.pytorch_utils import Conv1D

from gpuguide import plotting
from gpuguide.lora import cost
from gpuguide.plotting.pictures import adapters as pictures


def test_the_weights_are_those_that_an_adapter_trains() -> None:
    rows = {row["matrix"]: row for row in rows_of(plotting.adapter_beside_weights())}
    for row in rows.values():
        assert int(row["weights"]) == int(row["rows"]) * int(row["columns"])
    trained = sum(int(row["weights"]) for row in rows.values() if row["trained"] == "yes")
    assert trained == cost.adapter_parameters(pictures.INPUTS, pictures.OUTPUTS, pictures.RANK)


def test_the_orders_are_those_of_pytorch_and_transformers() -> None:
    layers = {
        "nn.Linear": nn.Linear(pictures.INPUTS, pictures.OUTPUTS),
        "Conv1D": Conv1D(pictures.OUTPUTS, pictures.INPUTS),
    }
    for row in rows_of(plotting.weights_in_two_orders()):
        assert (int(row["rows"]), int(row["columns"])) == tuple(layers[row["layer"]].weight.shape)
