"""The report as a browser shows it, in both schemes, on a screen and on a phone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpuguide.finetuning import Callback, FinetuneOptions, curve, report, run, write_report
from gpuguide.hardware import device as devices
from gpuguide.plotting import palette


@pytest.mark.parametrize("ours", [(report.LIGHT, palette.LIGHT), (report.DARK, palette.DARK)], ids=["light", "dark"])
def test_the_colours_are_those_of_the_figures(ours: tuple[dict[str, str], palette.Theme]) -> None:
    colours, theme = ours
    outer = {"background": theme.background, "text": theme.text, "grid": theme.grid}
    assert colours == {**outer, **{name: theme.series[name] for name in ("grey", "blue", "orange")}}


def test_a_curve_of_any_length_can_be_drawn() -> None:
    for count in (0, 1, 5000):
        losses = [5.0 / (1 + step) for step in range(count)]
        drawn = curve.svg(losses, [(0, 5.0)] if count else [], max(count, 1), 0)
        assert "nan" not in drawn
        assert drawn.count(",") < 900
    assert "No loss was evaluated yet." in curve.svg([], [], 10, None)


@pytest.mark.browser
def test_it_reads_well_everywhere(gpt2_folder: Path, tmp_path: Path, browser_path: Path) -> None:
    from axe_playwright_python.sync_playwright import Axe
    from playwright.sync_api import sync_playwright

    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps({"text": f"import {name} " * 9}) + "\n" for name in ("os", "re", "io")))
    options = FinetuneOptions(data, str(gpt2_folder), tmp_path / "out", steps=4, eval_every=2)
    path = write_report(run(options, devices.cpu(), Callback()), "gpuguide finetune data.jsonl --out " + "x" * 200)
    asked = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        for scheme in ("light", "dark"):
            for width in (1280, 390):
                page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)  # type: ignore[arg-type]
                page.on("request", lambda one: asked.append(one.url))
                page.goto(path.as_uri())
                assert page.evaluate("document.documentElement.scrollWidth") == width
                assert Axe().run(page).violations_count == 0
        browser.close()
    assert set(asked) == {path.as_uri()}
