from __future__ import annotations

import time

import collective_ranks as ranks
import pytest
import torch

from gpuguide.errors import GpuguideError
from gpuguide.interconnect.processes import Team

EXACT_ENOUGH = 1e-6
WAYS = ["each", "at once", "flat", "buckets 1", "buckets 300", "buckets 100000000"]


@pytest.mark.parametrize("name", WAYS)
def test_gradients_are_those_of_one_process_with_the_whole_batch(team: Team, name: str) -> None:
    assert max(team.run(ranks.averaged, name)) < EXACT_ENOUGH


def test_micro_batches_are_added_up_once_and_gradients_may_stay_in_place(team: Team) -> None:
    for once, again in team.run(ranks.in_micro_batches):
        assert max(once, again) < EXACT_ENOUGH


def test_rows_of_a_tied_embedding_are_gathered(team: Team) -> None:
    found = team.run(ranks.gathered_rows)
    assert max(error for error, _ in found) < EXACT_ENOUGH
    assert all(sums == found[0][1] for _, sums in found)  # replicas stay equal, bit by bit


def test_unequal_token_counts_need_weights(team: Team) -> None:
    for unweighted, weighted in team.run(ranks.unequal_tokens):
        assert weighted < EXACT_ENOUGH < 0.01 < unweighted


def test_a_parameter_that_some_ranks_do_not_use_gets_the_mean(team: Team) -> None:
    found = team.run(ranks.unused_on_some)
    assert max(error for error, _ in found) < EXACT_ENOUGH
    assert [names for _, names in found] == [[]] * (team.size - 1) + [["late.weight", "late.bias"]]
    assert max(error for error, _ in team.run(ranks.unused_on_some, "bfloat16")) < 1e-2


def test_sums_in_bf16_of_whole_numbers_are_exact(team: Team) -> None:
    assert all(team.run(ranks.exact_in_bf16))


def test_sums_begin_during_the_backward_pass_and_last_bucket_holds_what_comes_last(two: Team) -> None:
    for sent in two.run(ranks.bytes_in_order):
        layers = 4 * (2 * ranks.HIDDEN**2 + ranks.HIDDEN)
        embedding = 4 * ranks.VOCAB * ranks.HIDDEN
        assert sent[-1] == -1  # no sum was left to begin in wait()
        assert sum(sent[:-1]) == layers + embedding
        assert sent[-2] >= embedding
        assert len(sent) > 2


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (ranks.twice_without_wait, r"The gradient of [\w.]+ changed after its sum .* no_sync\(\)"),
        (ranks.without_backward, r"call wait\(\) after the backward pass"),
        (ranks.without_a_gradient, r"Parameter 0 of shape \(19, 8\) has no gradient"),
        (ranks.nothing_to_train, "there is nothing to add up"),
        (ranks.empty_buckets, "bucket_bytes is 0"),
        (ranks.die_before_a_sum, r"Rank 1 of 2 died while running die_before_a_sum \(exit status 7\)"),
    ],
)
def test_mistakes_are_told_before_anything_hangs(two: Team, function: object, said: str) -> None:
    begun = time.monotonic()
    with pytest.raises(GpuguideError, match=said):
        two.run(function)  # type: ignore[arg-type]
    assert time.monotonic() - begun < 30


@pytest.mark.parametrize(
    ("difference", "said"),
    [
        ("shape", r"at place 1 rank 0 has b \(2, 3\) in float32, and rank 1 has b \(3, 2\) in float32"),
        ("order", r"at place 0 rank 0 has a \(4,\) in float32, and rank 1 has b \(2, 3\)"),
        ("format", r"at place 0 rank 0 has a \(4,\) in float32, and rank 1 has a \(4,\) in bfloat16"),
        ("number", r"at place 1 rank 0 has b \(2, 3\) in float32, and rank 1 has nothing"),
    ],
)
def test_ranks_that_disagree_are_named(two: Team, difference: str, said: str) -> None:
    two.run(ranks.agree)
    with pytest.raises(GpuguideError, match=said):
        two.run(ranks.disagree, difference)


def test_gloo_refuses_coalesced_sums_and_stays_of_use(two: Team) -> None:
    assert two.run(ranks.coalesced_then_summed) == [2.0, 2.0]


def test_a_world_of_one_changes_nothing() -> None:
    with Team(1, "cpu", start="fork") as team:
        assert team.run(ranks.alone) == [True]


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_gradients_are_those_of_one_process_on_gpus() -> None:
    with Team(2) as team:
        for name in [*WAYS, "coalesced", "ddp"]:
            assert max(team.run(ranks.averaged, name)) < 1e-5, name
        found = team.run(ranks.gathered_rows)
        assert max(error for error, _ in found) < 1e-5
        assert found[0][1] == found[1][1]
