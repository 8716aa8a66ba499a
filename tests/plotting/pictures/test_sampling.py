"""Drawings of a draw: what they show is what the library computes."""

from __future__ import annotations

import pytest
import torch
from figure_rows import rows_of

from gpuguide import logits
from gpuguide.plotting.pictures import sampling as pictures


def test_the_strips_keep_what_the_library_keeps() -> None:
    row = torch.tensor([list(pictures.EXAMPLE.values())], dtype=torch.float64)
    applied: dict[str, float] = {}
    steps = [("top_k", pictures.TOP_K), ("top_p", pictures.TOP_P), ("min_p", pictures.MIN_P)]
    stages = pictures.stages()
    for (name, value), stage in zip(steps, stages[2:], strict=False):
        applied[name] = value
        left = logits.adjust(row, temperature=pictures.TEMPERATURE, **applied)  # type: ignore[arg-type]
        assert stage.kept == int(torch.isfinite(left).sum())
        assert stage.kept < len(stage.shares), "each setting cuts something off"
    shares = torch.softmax(left, dim=-1)[0, : stages[-1].kept]
    torch.testing.assert_close(torch.tensor(stages[-1].shares, dtype=torch.float64), shares)


def test_the_wheel_and_the_race_draw_the_same_token() -> None:
    times = {row["token"]: float(row["time"]) for row in rows_of(pictures.race_of_the_tokens())}
    assert min(times, key=lambda token: times[token]) == "sofa"
    assert "'sofa'" in pictures.cut_and_draw().alt


def test_the_bytes_follow_from_the_vocabulary() -> None:
    read, written, again = (float(row["KiB"]) for row in rows_of(pictures.two_kernels()))
    assert read == pytest.approx(4 * 128256 / 1024)
    assert written == pytest.approx(4 * 2004 / 1024, rel=1e-4)
    reads = {row["part"]: float(row["reads"]) for row in rows_of(pictures.chain_and_one_read())}
    assert reads.pop("one read") == pytest.approx(1 + (2 * written + again) / read, rel=1e-3)


def test_only_a_number_from_seed_and_step_is_the_same_in_a_batch() -> None:
    for row in rows_of(pictures.random_numbers_of_a_batch()):
        same = row["alone"] == row["in a batch"]
        assert same == (row["source"] == "seed and step" or row["step"] == "0")


def test_our_sampler_is_the_fastest_of_three_with_every_cut() -> None:
    times: dict[tuple[str, str], dict[str, float]] = {}
    for row in rows_of(pictures.times_of_a_draw()):
        times.setdefault((row["sequences"], row["cut"]), {})[row["sampler"]] = float(row["time_s"])
    assert len(times) == len(pictures.BATCHES) * len(pictures.CUTS)
    assert all(min(each, key=lambda name: each[name]) == "sample_token" for each in times.values())


def test_a_larger_vocabulary_takes_fewer_reads_and_ours_takes_the_fewest() -> None:
    reads: dict[str, list[float]] = {}
    for row in rows_of(pictures.reads_by_vocabulary()):
        reads.setdefault(row["sampler"], []).append(float(row["reads"]))
    assert all(found == sorted(found, reverse=True) for found in reads.values())
    assert all(min(each, key=each.get) == "ours" for each in _columns(reads))  # type: ignore[arg-type]


def _columns(table: dict[str, list[float]]) -> list[dict[str, float]]:
    return [dict(zip(table, column, strict=True)) for column in zip(*table.values(), strict=True)]


def test_one_read_and_the_rest_are_the_measured_draw() -> None:
    rows = rows_of(pictures.read_and_rest())
    for row, (sequences, name) in zip(rows, pictures.DRAWS, strict=True):
        whole = pictures.seconds_of_a_draw("gpuguide", sequences, pictures.VOCABULARIES[name])
        assert float(row["read_s"]) + float(row["rest_s"]) == pytest.approx(whole, rel=1e-4)
    rests = [float(row["rest_s"]) for row in rows if row["draw"].startswith(f"{pictures.MANY},")]
    assert max(rests) < 1.1 * min(rests), "the rest hardly depends on the vocabulary"


def test_two_numbers_of_each_piece_give_the_log_sum_exp_of_the_row() -> None:
    found = [(float(row["largest"]), float(row["sum"])) for row in rows_of(pictures.pieces_of_a_row())]
    pieces = [largest + torch.tensor(total).log() for largest, total in found]
    whole = torch.tensor(list(pictures.EXAMPLE.values())).logsumexp(0)
    torch.testing.assert_close(torch.stack(pieces).logsumexp(0), whole, rtol=1e-4, atol=1e-4)
