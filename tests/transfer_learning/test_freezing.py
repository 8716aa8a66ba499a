from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from gpuguide.transfer_learning import (
    ResNet,
    count_trained_parameters,
    find_changed,
    layer_rates,
    shapes,
    snapshot,
    train_mode,
    train_only,
)


@pytest.fixture
def network() -> ResNet:
    torch.manual_seed(0)
    return ResNet(kinds=8, width=4)


def steps(network: nn.Module, count: int = 3) -> None:
    """Train whatever is trained, in the mode that the network is in."""
    images = shapes(32, seed=0)
    optimizer = torch.optim.SGD([each for each in network.parameters() if each.requires_grad], lr=0.1)
    for _ in range(count):
        optimizer.zero_grad()
        functional.cross_entropy(network(images.pixels), images.kinds).backward()
        optimizer.step()


# --- what is trained ---------------------------------------------------------------------------------------


def test_only_what_a_pattern_fits_is_trained(network: ResNet) -> None:
    count = train_only(network, "fc.*", "stage3.conv2.weight")
    trained = {name for name, each in network.named_parameters() if each.requires_grad}
    assert trained == {"fc.weight", "fc.bias", "stage3.conv2.weight"}
    assert count == count_trained_parameters(network) == 16 * 8 + 8 + 16 * 16 * 9


def test_without_a_pattern_nothing_is_trained(network: ResNet) -> None:
    assert train_only(network) == 0


def test_what_was_frozen_is_trained_again(network: ResNet) -> None:
    train_only(network)
    assert train_only(network, "*") == sum(each.numel() for each in network.parameters())


def test_a_pattern_that_fits_nothing_is_named_and_changes_nothing(network: ResNet) -> None:
    with pytest.raises(ValueError, match=r"'fx\.\*' fits no parameter.*fc\."):
        train_only(network, "fc.*", "fx.*")
    assert all(each.requires_grad for each in network.parameters())


def test_a_tied_matrix_counts_once() -> None:
    one, other = nn.Linear(3, 5, bias=False), nn.Linear(3, 5, bias=False)
    other.weight = one.weight
    assert count_trained_parameters(nn.Sequential(one, other)) == 15


# --- what stays --------------------------------------------------------------------------------------------


def test_training_mode_moves_the_statistics_of_frozen_batch_norms(network: ResNet) -> None:
    train_only(network, "fc.*")
    before = snapshot(network)
    network.train()
    steps(network)
    moved = set(find_changed(network, before)) - {"fc.weight", "fc.bias"}
    assert moved == {name for name, _ in network.named_buffers()}
    assert {name.rpartition(".")[2] for name in moved} == {"running_mean", "running_var", "num_batches_tracked"}


def test_frozen_parts_stay_in_our_training_mode(network: ResNet) -> None:
    train_only(network, "fc.*")
    before = snapshot(network)
    train_mode(network)
    steps(network)
    assert find_changed(network, before) == ["fc.weight", "fc.bias"]


def test_batch_norms_that_are_trained_follow_their_batches(network: ResNet) -> None:
    train_only(network, "stage3.*", "fc.*")
    before = snapshot(network)
    train_mode(network)
    steps(network)
    assert {name.partition(".")[0] for name in find_changed(network, before)} == {"stage3", "fc"}
    assert "stage3.norm1.running_mean" in find_changed(network, before)


def test_what_has_no_parameters_does_as_the_part_around_it() -> None:
    frozen = nn.Sequential(nn.Linear(2, 2), nn.Dropout(), nn.BatchNorm1d(2, affine=False))
    trained = nn.Sequential(nn.Linear(2, 2), nn.Dropout(), nn.BatchNorm1d(2, affine=False))
    frozen.requires_grad_(False)
    whole = nn.Sequential(frozen, trained, nn.Dropout())
    train_mode(whole)
    assert whole.training
    assert [each.training for each in frozen.modules()] == [False] * 4
    assert [each.training for each in trained.modules()] == [True] * 4
    assert whole[2].training


def test_a_snapshot_is_not_the_model_itself(network: ResNet) -> None:
    before = snapshot(network)
    with torch.no_grad():
        network.fc.bias[0] += 1
    assert find_changed(network, before) == ["fc.bias"]


# --- how fast each layer learns ----------------------------------------------------------------------------


def test_each_layer_learns_more_slowly_than_the_next() -> None:
    layers = [nn.Linear(2, 2) for _ in range(4)]
    layers[1].requires_grad_(False)
    groups = layer_rates(layers, learning_rate=1.0, decay=0.5)
    assert [group["lr"] for group in groups] == [0.125, 0.5, 1.0]
    assert [group["params"][0] for group in groups] == [layers[at].weight for at in (0, 2, 3)]


def test_the_usual_decay_is_that_of_the_source() -> None:
    lower, upper = layer_rates([nn.Linear(1, 1), nn.Linear(1, 1)], learning_rate=2.6)
    assert (lower["lr"], upper["lr"]) == (pytest.approx(1.0), 2.6)


def test_without_decay_training_is_that_of_one_rate() -> None:
    torch.manual_seed(0)
    grouped = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    plain = copy.deepcopy(grouped)
    inputs, kinds = torch.randn(16, 4), torch.randint(2, (16,))
    for model, given in ((grouped, layer_rates(list(grouped), 0.1, decay=1.0)), (plain, list(plain.parameters()))):
        optimizer = torch.optim.Adam(given, lr=0.1)
        for _ in range(5):
            optimizer.zero_grad()
            functional.cross_entropy(model(inputs), kinds).backward()
            optimizer.step()
    assert all(torch.equal(one, other) for one, other in zip(grouped.parameters(), plain.parameters(), strict=True))


@pytest.mark.parametrize("decay", [0.0, -0.5, 1.5])
def test_a_decay_out_of_range_is_refused(decay: float) -> None:
    with pytest.raises(ValueError, match=f"decay is {decay}; it must be above 0 and at most 1"):
        layer_rates([nn.Linear(1, 1)], 0.1, decay)


def test_nothing_to_train_is_refused() -> None:
    with pytest.raises(ValueError, match="unfreeze what is to learn first"):
        layer_rates([nn.Linear(1, 1).requires_grad_(False)], 0.1)
