"""Drawings: their numbers are those of the records, and all renditions can be read."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable

import pytest

from gpuguide import plotting
from gpuguide.measure import reference_gpu, store
from gpuguide.plotting import text_boxes

PICTURES = (
    plotting.memories_of_a_gpu,
    plotting.wait_for_a_word,
    plotting.bytes_under_way,
    plotting.stream_and_queue,
    plotting.causal_tiles,
    plotting.what_utilisation_counts,
    plotting.step_and_its_data,
    plotting.from_text_to_token,
    plotting.softmax_on_a_line,
    plotting.tile_traffic,
    plotting.online_softmax,
    plotting.overlapped_schedule,
)


@pytest.fixture(autouse=True)
def site_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUGUIDE_SITE_BUILD", "1")
    monkeypatch.setenv("GPUGUIDE_RECORDS", "")


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: picture.__name__)
def test_a_drawing_has_all_renditions_a_name_and_a_table(picture: Callable[[], plotting.Figure]) -> None:
    shown = picture()
    assert shown.svg is not None
    assert set(shown.svg) == {"light", "dark", "light-narrow", "dark-narrow"}
    assert shown.name == picture.__name__.replace("_", "-")
    assert shown.csv
    assert text_boxes.too_small(shown.svg["light-narrow"]) == []
    assert max(map(len, shown.svg.values())) < 25_000


def test_the_memories_are_as_fast_as_measured() -> None:
    shown = plotting.memories_of_a_gpu()
    rows = {row["memory"]: row for row in csv.DictReader(io.StringIO(shown.csv))}
    link = store.published("ceilings").case("h2d-pinned").metrics["bandwidth"].summary.median
    assert float(rows["Host memory"]["bandwidth_B_per_s"]) == pytest.approx(link, rel=1e-5)
    rates = [float(row["bandwidth_B_per_s"]) for row in rows.values()]
    assert rates == sorted(rates, reverse=True)
    assert len(shown.stamps) >= 1
    assert reference_gpu.word("a short") in shown.caption


def test_the_two_timers_read_what_was_measured() -> None:
    rows = {row["what"]: float(row["time_s"]) for row in csv.DictReader(io.StringIO(plotting.stream_and_queue().csv))}
    submit, run, early, late = rows.values()
    record = store.published("timing-mistakes")
    assert run == pytest.approx(record.case("right", shape="square").metrics["time"].summary.median, rel=1e-5)
    assert early == pytest.approx(3 * submit, rel=1e-4)
    assert late == pytest.approx(submit + 3 * run, rel=1e-4)


def test_the_tiles_are_counted() -> None:
    shown = plotting.causal_tiles(4)
    rows = {row["tiles"]: int(row["count"]) for row in csv.DictReader(io.StringIO(shown.csv))}
    assert rows == {"computed": 6, "masked": 4, "skipped": 6}
