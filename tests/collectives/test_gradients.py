from __future__ import annotations

import time

import collective_ranks as ranks
import pytest
import torch

from gpuguide.errors import GpuguideError
from gpuguide.interconnect.processes import Team

EXACT_ENOUGH = 1e-6
WAYS = ["each", "at once", "flat", "coalesced", "buckets 1", "buckets 300", "buckets 100000000"]
WAYS += ["buckets 300 by copies", "buckets 100000000 by copies"]


@pytest.mark.parametrize("name", WAYS)
def test_gradients_are_those_of_one_process_with_the_whole_batch(team: Team, name: str) -> None:
    assert max(team.run(ranks.averaged, name)) < EXACT_ENOUGH


def test_micro_batches_are_added_up_once_and_gradients_may_stay_in_place(team: Team) -> None:
    for once, again in team.run(ranks.in_micro_batches):
        assert max(once, again) < EXACT_ENOUGH


@pytest.mark.parametrize("name", ["each", "flat", "coalesced"])
def test_gradients_that_lie_otherwise_on_another_rank_are_averaged_by_place(team: Team, name: str) -> None:
    assert team.run(ranks.lying_otherwise, name) == [[[1.0, 2.0], [3.0, 4.0]]] * team.size


@pytest.mark.parametrize(("dtype_name", "accepted"), [(None, EXACT_ENOUGH), ("bfloat16", 1e-2)])
def test_rows_of_a_tied_embedding_are_added_to_the_mean(team: Team, dtype_name: str | None, accepted: float) -> None:
    found = team.run(ranks.gathered_rows, dtype_name)
    assert max(error for error, _ in found) < accepted
    assert all(sums == found[0][1] for _, sums in found)  # replicas stay equal, bit by bit


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("counts", [[3, 1, 1], [3, 0, 1], [0, 2, 0]])
def test_every_token_weighs_the_same_on_whichever_rank_it_lies(team: Team, counts: list[int], masked: bool) -> None:
    for of_means, of_sums, loss, right in team.run(ranks.unequal_tokens, (3 * counts)[: team.size], masked):
        assert of_sums < EXACT_ENOUGH < 0.01 < of_means
        assert loss == pytest.approx(right, rel=1e-6)


def test_no_token_on_any_rank_gives_no_loss(team: Team) -> None:
    assert team.run(ranks.no_tokens_at_all) == [0.0] * team.size


def test_a_parameter_that_some_ranks_do_not_use_gets_the_mean(team: Team) -> None:
    found = team.run(ranks.unused_on_some)
    assert max(error for error, _ in found) < EXACT_ENOUGH
    assert [names for _, names in found] == [[]] * (team.size - 1) + [["late.weight", "late.bias"]]
    assert max(error for error, _ in team.run(ranks.unused_on_some, "bfloat16")) < 1e-2


def test_sums_in_bf16_of_whole_numbers_are_exact(team: Team) -> None:
    assert all(team.run(ranks.exact_in_bf16))


@pytest.mark.parametrize("dtype_name", ["float32", "bfloat16"])
def test_means_by_copies_are_those_of_all_ranks(team: Team, dtype_name: str) -> None:
    assert all(team.run(ranks.copied_exactly, dtype_name))


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
        (ranks.not_of_the_module, r"shape \(3,\) comes first, and the module does not train it"),
        (ranks.other_order, "at place 0 rank 0 has early.weight .* rank 1 has embedding.weight"),
        (ranks.other_buckets, r"rank 0 has bucket 0 \(\d+,\) in float32, and rank 1 has bucket 0"),
        (ranks.rows_twice, r"Buckets.wait\(\) adds them by itself"),
        (ranks.padded_rows, "padding_idx"),
        (ranks.frozen_rows, "ask for no gradient"),
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


def test_a_world_of_one_changes_nothing() -> None:
    with Team(1, "cpu", start="fork") as team:
        assert team.run(ranks.alone) == [True]


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_gradients_are_those_of_one_process_on_gpus() -> None:
    with Team(torch.cuda.device_count()) as team:
        for name in [*WAYS, "ddp"]:
            assert max(team.run(ranks.averaged, name)) < 1e-5, name
        for name in ("each", "flat", "coalesced"):
            assert team.run(ranks.lying_otherwise, name) == [[[1.0, 2.0], [3.0, 4.0]]] * team.size, name
        for dtype_name, accepted in ((None, 1e-5), ("bfloat16", 1e-2)):
            found = team.run(ranks.gathered_rows, dtype_name)
            assert max(error for error, _ in found) < accepted
            assert all(sums == found[0][1] for _, sums in found)
            unused = team.run(ranks.unused_on_some, dtype_name)
            assert max(error for error, _ in unused) < accepted
        for once, again in team.run(ranks.in_micro_batches):
            assert max(once, again) < 1e-5
        for counts in ([3, 1], [3, 0]):
            for _, of_sums, loss, right in team.run(ranks.unequal_tokens, (4 * counts)[: team.size], True):
                assert of_sums < 1e-5
                assert loss == pytest.approx(right, rel=1e-5)
        assert team.run(ranks.no_tokens_at_all) == [0.0] * team.size
        assert all(team.run(ranks.exact_in_bf16))
        team.run(ranks.agree)
