"""Figures of a GPU watched over time."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
import synthetic_records as synthetic
from matplotlib.figure import Figure as Canvas

from gpuguide import plotting
from gpuguide.errors import GpuguideError, UnknownName
from gpuguide.hardware.quantities import QUANTITIES
from gpuguide.hardware.trace import Row, Trace
from gpuguide.measure import records, traces
from gpuguide.measure.records import Case, Record
from gpuguide.plotting.figure import Draw

GIB = 2**30
READINGS = {
    "gpu_utilisation": 1.0,
    "memory_utilisation": 0.3,
    "sm_activity": 0.9,
    "tensor_activity": 0.4,
    "bandwidth_share": 0.6,
    "power": 300.0,
    "instant_power": 310.0,
    "sm_clock": 1.4e9,
    "temperature": 55.0,
    "memory_used": 6.0 * GIB,
    "reserved": 5.0 * GIB,
    "allocated": 2.0 * GIB,
}


def made(names: Any = READINGS, device: str = "NVIDIA Made-up") -> Trace:
    units = {name: QUANTITIES[name].unit for name in names}
    rows = [Row(0.1 * index, 1e-3, {name: READINGS[name] * index / 10 for name in names}) for index in range(11)]
    board = {"power_limit": 700.0, "sm_clock_limit": 1.98e9, "slowdown_temperature": 89.0}
    return Trace(device, 0, 0.1, "2026-01-02T03:04:05+00:00", units, {}, board, rows)


def record_of(device: tuple[str, str]) -> Record:
    case = Case({"scenario": "spin"}, "nvml", 0, "ok", measured=traces.as_metrics(made()))
    return synthetic.record("gpu-metrics", [case], device)


def texts(shown: plotting.Figure, scheme: str = "light") -> list[str]:
    assert shown.svg is not None
    return re.findall(r"<text[^>]*>([^<]+)</text>", shown.svg[scheme])


@pytest.fixture(autouse=True)
def site_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUGUIDE_SITE_BUILD", "1")


def show(source: Any, **named: Any) -> plotting.Figure:
    draw: Draw = lambda figure, theme: plotting.trace(figure, source, **named)  # noqa: E731
    return plotting.show(draw, alt="Readings.", caption="A GPU.", size=(5.8, 6.8))


def test_each_panel_asks_one_question_in_both_schemes() -> None:
    shown = show(made(), panels=list(plotting.PANELS))
    for scheme in ("light", "dark"):
        found = texts(shown, scheme)
        assert [panel.question for panel in plotting.PANELS.values()] == [text for text in found if text.endswith("?")]
        assert {"100%", "500 W", "1 GHz", "50 °C", "4 GiB", "seconds"} <= set(found)
        assert {"power limit", "highest clock", "the hardware slows down", "memory controller", "reserved"} <= set(
            found
        )
    assert shown.svg is not None
    assert plotting.LIGHT.series["pink"] in shown.svg["light"]
    assert plotting.DARK.series["pink"] in shown.svg["dark"]


def test_what_is_drawn_is_what_was_read() -> None:
    canvas = Canvas()
    plotting.trace(canvas, made(), panels=["power"])
    average, now = canvas.axes[0].get_lines()[:2]
    assert average.get_ydata()[-1] == 300
    assert now.get_ydata()[-1] == 310
    assert average.get_xdata()[-1] == pytest.approx(1.0)
    assert average.get_color() != now.get_color()
    assert average.get_linestyle() != now.get_linestyle()


def test_colours_of_one_panel_differ_and_exist() -> None:
    for panel in plotting.PANELS.values():
        colours = [colour for _, colour in panel.quantities.values()]
        assert len(set(colours)) == len(colours) <= 3
        assert set(colours) <= set(plotting.LIGHT.series)
        assert set(panel.quantities) <= set(QUANTITIES)


def test_a_reading_that_is_absent_is_left_out_of_its_panel() -> None:
    found = texts(show(made(["power", "temperature"]), panels=["power", "temperature"]))
    assert "now" not in found


def test_a_panel_of_which_nothing_was_read() -> None:
    with pytest.raises(GpuguideError, match=r"holds none of sm_clock, which the panel 'clock' shows\. It holds power"):
        plotting.trace(Canvas(), made(["power"]), panels=["power", "clock"])


def test_a_panel_that_does_not_exist() -> None:
    with pytest.raises(UnknownName, match=r"no panel .* named 'clocks'\. Did you mean clock"):
        plotting.trace(Canvas(), made(), panels=["clocks"])


def test_a_gap_is_a_gap() -> None:
    gapped = made(["memory_used"])
    gapped.rows[5] = Row(0.5, 1e-3, {"memory_used": math.nan})
    assert "4 GiB" in texts(show(gapped, panels=["memory"]))


def test_a_record_is_stamped_and_a_readers_own_is_drawn_over_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    published = record_of(synthetic.PUBLISHED)
    alone = show(published, scenario="spin")
    assert alone.stamps == (f"{published.runs[0].stamp()} · n = 1 to 11",)
    own = record_of(synthetic.OWN)
    records.write(own, tmp_path / own.device / "gpu-metrics.json")
    monkeypatch.setenv("GPUGUIDE_RECORDS", str(tmp_path))
    both = show(published, scenario="spin")
    assert "RTX 4090 (yours)" in texts(both)
    assert len(both.stamps) == 2
    assert both.alt.endswith("measured by you on NVIDIA GeForce RTX 4090.")


def test_a_case_that_is_not_there() -> None:
    with pytest.raises(GpuguideError, match="scenario=nothing matches 0 cases"):
        plotting.trace(Canvas(), record_of(synthetic.PUBLISHED), scenario="nothing")
