"""Drawings of what a mean counts: their weights are those that torch gives to the losses of targets."""

from __future__ import annotations

import pytest
import torch
from figure_rows import rows_of

from gpuguide.plotting.pictures import loss_masks


def test_weights_are_the_gradients_of_the_means() -> None:
    losses = [torch.ones(count, requires_grad=True) for count in loss_masks.COUNTED]
    means = {
        "mean of means": sum(each.mean() for each in losses) / len(losses),
        "sum divided once": sum(each.sum() for each in losses) / sum(loss_masks.COUNTED),
    }
    for row in rows_of(loss_masks.targets_that_count()):
        place = int(row["micro_batch"]) - 1
        (slopes,) = torch.autograd.grad(means[row["mean"]], losses[place], retain_graph=True)
        assert float(row["weight_of_each"]) == pytest.approx(float(slopes[0]), rel=1e-5)


def test_losses_stand_in_order() -> None:
    found = [float(row["loss_nats"]) for row in rows_of(loss_masks.where_losses_lie({"a": 3.0, "b": 1.0}))]
    assert found == [1.0, 3.0]
