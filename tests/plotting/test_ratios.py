"""Ratios in rows: what is drawn is what the records say, for published and for own ones."""

from __future__ import annotations

from pathlib import Path

import pytest
import synthetic_records as synthetic
from figure_rows import rows_of

from gpuguide import plotting
from gpuguide.errors import GpuguideError
from gpuguide.measure import citation, folders, records, reference_gpu

BY_SHAPE = [f"timing-mistakes/no-warm-up/right:time shape={shape}" for shape in ("square", "skinny")]
COLD = ["timing-mistakes/cold-clock/right:time shape=square", None]


@pytest.fixture(autouse=True)
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record of what timing mistakes do, on the GPU that prose speaks of."""
    monkeypatch.setattr(reference_gpu, "slug", lambda: synthetic.PUBLISHED[0])
    monkeypatch.setattr(folders, "published_folder", lambda: tmp_path / "published")
    monkeypatch.setenv("GPUGUIDE_RECORDS", str(tmp_path / "mine"))
    monkeypatch.setenv("GPUGUIDE_SITE_BUILD", "1")
    (tmp_path / "mine").mkdir()
    write(tmp_path / "published", synthetic.PUBLISHED)


def write(folder: Path, device: tuple[str, str]) -> None:
    record = synthetic.record("timing-mistakes", synthetic.cases_of("timing-mistakes"), device)
    records.write(record, folder / device[0] / "timing-mistakes.json")


def drawn(*rows: str) -> plotting.Figure:
    marks = {"no warm-up": plotting.Mark("blue", "o", BY_SHAPE), "cold": plotting.Mark("orange", "s", COLD)}

    def draw(figure, theme):
        ax = figure.subplots()
        plotting.ratios(ax, rows or ("square", "skinny"), marks)
        plotting.legend(ax)

    return plotting.show(draw, alt="Ratios.", caption="Ratios.")


def test_marks_lie_at_the_medians_of_paired_ratios_and_none_where_nothing_is_compared() -> None:
    expected = [citation.ratio(each).value for each in (*BY_SHAPE, COLD[0]) if each]
    found = [float(row["x"]) for row in rows_of(drawn())]
    assert sorted(found) == pytest.approx(sorted(expected), rel=1e-5)
    assert all(f">{citation.ratio(each).text}<" in (drawn().svg or {})["light"] for each in BY_SHAPE)


def test_own_ratios_are_drawn_and_named(tmp_path: Path) -> None:
    write(tmp_path / "mine", synthetic.OWN)
    shown = drawn()
    assert shown.svg is not None
    assert "RTX 4090 (yours)" in shown.svg["light"]
    assert "measured by you" in shown.alt


def test_as_many_ratios_as_rows() -> None:
    with pytest.raises(GpuguideError, match="2 ratios for 1 rows"):
        drawn("square")
