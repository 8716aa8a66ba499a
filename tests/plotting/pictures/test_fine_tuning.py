"""Drawings of fine-tuning: they show what the library counts, what transformers stores, and what a gradient reaches."""

from __future__ import annotations

import pytest
import torch
from figure_rows import rows_of
from torch import nn
from transformers.pytorch_utils import Conv1D

from gpuguide.lora import Settings, add_adapters, cost
from gpuguide.models.gpt2 import GPT2, GPT2Config
from gpuguide.plotting.pictures import fine_tuning as pictures
from gpuguide.plotting.pictures.fine_tuning import COLUMNS, LAYERS
from gpuguide.transfer_learning import NewHead, NextToken, SoftPrompt, train_only


def test_the_weights_are_those_that_an_adapter_trains() -> None:
    rows = {row["matrix"]: row for row in rows_of(pictures.adapter_beside_weights())}
    for row in rows.values():
        assert int(row["weights"]) == int(row["rows"]) * int(row["columns"])
    trained = sum(int(row["weights"]) for row in rows.values() if row["trained"] == "yes")
    assert trained == cost.adapter_parameters(pictures.WIDTH, pictures.WIDTH, pictures.RANK)


def test_the_orders_are_those_of_pytorch_and_transformers() -> None:
    layers = {
        "nn.Linear": nn.Linear(pictures.INPUTS, pictures.OUTPUTS),
        "Conv1D": Conv1D(pictures.OUTPUTS, pictures.INPUTS),
    }
    for row in rows_of(pictures.weights_in_two_orders()):
        assert (int(row["rows"]), int(row["columns"])) == tuple(layers[row["layer"]].weight.shape)


# --- which parts are trained --------------------------------------------------------------------------


def drawn() -> dict[str, dict[str, str]]:
    """Return what the drawing shows of each way."""
    return {row["way"]: row for row in rows_of(pictures.parts_that_are_trained())}


def prepared(way: str) -> torch.nn.Module:
    """Return a model with as many layers as are drawn, trained as the drawing says."""
    torch.manual_seed(0)
    model = GPT2(GPT2Config(vocab_size=20, context=16, layers=LAYERS, heads=2, hidden=8, dropout=0.0))
    if way == "soft prompt":
        return SoftPrompt(model, 2)
    if way == "LoRA":
        add_adapters(model, ["query_key_value", "out", "up", "down"], Settings(rank=1))
        return NextToken(model)
    if way == "new head":
        module = NewHead(model, 2)
        train_only(module, "fc.*")
        return module
    if way == "last layers":
        module_of_all = NextToken(model)
        train_only(module_of_all, f"model.blocks.{LAYERS - 1}.*", "model.final_norm.*")
        return module_of_all
    return NextToken(model)


@pytest.mark.parametrize("way", ["new head", "last layers", "soft prompt", "LoRA", "all weights"])
def test_the_gradient_goes_as_deep_as_is_drawn(way: str) -> None:
    module = prepared(way)
    model = module.get_submodule("model")
    assert isinstance(model, GPT2)
    recorded = []
    for block in model.blocks:
        block.register_forward_hook(lambda block, inputs, output: recorded.append(output.requires_grad))
    module(torch.zeros(1, 4, dtype=torch.int64), torch.tensor([3]))
    assert sum(recorded) == int(drawn()[way]["layers_passed"])
    whole = [all(each.requires_grad for each in block.parameters()) for block in model.blocks]
    assert sum(whole) == int(drawn()[way]["layers_trained"])


def test_in_context_learning_trains_nothing() -> None:
    row = drawn()["examples in prompt"]
    assert (row["layers_trained"], row["layers_passed"]) == ("0", "0")
    assert len(drawn()) == len(COLUMNS) == 6


def test_kept_features_need_the_model_once() -> None:
    runs: dict[str, list[str]] = {}
    for row in rows_of(pictures.features_kept()):
        runs.setdefault(row["line"], []).append(row["runs"])
    every, once = runs.values()
    assert every.count("model") == pictures.STEPS
    assert once.count("model") == 1
    assert every.count("head") == once.count("head") == pictures.STEPS
