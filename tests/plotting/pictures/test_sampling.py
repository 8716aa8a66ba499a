"""Drawings of a draw: what they show is what the library computes."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable

import pytest
import torch

from gpuguide import logits, plotting
from gpuguide.plotting import text_boxes
from gpuguide.plotting.pictures import sampling as pictures

PICTURES = (
    plotting.cut_and_draw,
    plotting.race_of_the_tokens,
    plotting.chain_and_one_read,
    plotting.two_kernels,
)


@pytest.fixture(autouse=True)
def site_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUGUIDE_SITE_BUILD", "1")
    monkeypatch.setenv("GPUGUIDE_RECORDS", "")


def rows_of(shown: plotting.Figure) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(shown.csv)))


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: picture.__name__)
def test_a_drawing_has_all_renditions_a_name_and_a_table(picture: Callable[[], plotting.Figure]) -> None:
    shown = picture()
    assert shown.svg is not None
    assert set(shown.svg) == {"light", "dark", "light-narrow", "dark-narrow"}
    assert shown.name == picture.__name__.replace("_", "-")
    assert shown.csv
    assert text_boxes.too_small(shown.svg["light-narrow"]) == []
    assert max(map(len, shown.svg.values())) < 25_000


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
    times = {row["token"]: float(row["time"]) for row in rows_of(plotting.race_of_the_tokens())}
    assert min(times, key=lambda token: times[token]) == "sofa"
    assert "'sofa'" in plotting.cut_and_draw().alt


def test_the_bytes_follow_from_the_vocabulary() -> None:
    read, written, again = (float(row["KiB"]) for row in rows_of(plotting.two_kernels()))
    assert read == pytest.approx(4 * 128256 / 1024)
    assert written == pytest.approx(4 * 2004 / 1024, rel=1e-4)
    reads = {row["part"]: float(row["reads"]) for row in rows_of(plotting.chain_and_one_read())}
    assert reads.pop("one read") == pytest.approx(1 + (2 * written + again) / read, rel=1e-3)
