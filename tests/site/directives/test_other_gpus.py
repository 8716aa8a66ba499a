"""Figures on the site leave other GPUs out until a reader switches them on, for all figures and pages at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import synthetic_records as synthetic
from bs4 import BeautifulSoup
from small_site import cell, start

CURVES = """
from gpuguide import plotting


def draw(figure, theme):
    plotting.curves(figure.subplots(), "matmul-size", x="size", metric="throughput", contenders=["matmul-bf16"])


plotting.show(draw, alt="Rates of matmuls.", caption="Matmuls. They take time.")
"""
PAGE = f"A figure.\n\n{cell(CURVES.strip())}"
SEEN = "all => all.filter(each => each.checkVisibility()).length"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two pages with a figure each, of a benchmark that two GPUs ran."""
    made = start(tmp_path_factory.mktemp("site"))
    made.record("matmul-size")
    made.record("matmul-size", 0.5, device=synthetic.OTHER)
    made.page("index", f"{PAGE}\n\n```{{toctree}}\ntutorials/00-first\n```", benchmarks="matmul-size")
    made.page("tutorials/00-first", PAGE, benchmarks="matmul-size")
    build = made.build()
    assert build.status == 0, build.output
    return made.html


def test_a_figure_has_a_drawing_without_another_gpu_and_one_with_it(site: Path) -> None:
    figure = BeautifulSoup((site / "index.html").read_text(encoding="utf-8"), "html.parser").select_one("figure")
    assert figure
    with_it = figure.select("img.gg-others")
    assert (len(figure.select("img")), len(with_it)) == (4, 2)
    for image in with_it:
        assert ">H200<" in (site / str(image["src"])).read_text(encoding="utf-8")
        assert "NVIDIA H200" in image["alt"]
    for image in figure.select("img.gg-alone"):
        assert "H200" not in (site / str(image["src"])).read_text(encoding="utf-8")
        assert image["alt"] == "Rates of matmuls."
    assert "H200" not in figure.select_one(".caption-text").text
    assert [stamp.text.split(" · ")[0] for stamp in figure.select(".gg-stamp.gg-others")] == ["NVIDIA H200"]


def test_a_notebook_shows_the_gpu_of_the_page_alone(site: Path) -> None:
    notebook = json.loads((site / "notebooks" / "00-first.ipynb").read_text(encoding="utf-8"))
    assert "gg-others" not in json.dumps(notebook)
    assert "H200" not in json.dumps(notebook["cells"])


@pytest.mark.browser
def test_a_reader_switches_other_gpus_on_by_keyboard_and_finds_them_on_the_next_page(browser: Any, site: Path) -> None:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    tab = context.new_page()
    tab.goto((site / "index.html").as_uri())
    others, alone = tab.locator("figure .gg-others"), tab.locator("figure .gg-alone")
    assert (others.evaluate_all(SEEN), alone.evaluate_all(SEEN)) == (0, 1)
    switch = tab.get_by_role("button", name="Show other GPUs")
    assert switch.get_attribute("aria-pressed") == "false"
    switch.focus()
    tab.keyboard.press("Enter")
    assert switch.get_attribute("aria-pressed") == "true"
    assert (others.evaluate_all(SEEN), alone.evaluate_all(SEEN)) == (2, 0), "a drawing and a stamp"
    tab.emulate_media(media="print")
    assert (others.evaluate_all(SEEN), alone.evaluate_all(SEEN)) == (2, 0)
    tab.emulate_media(media="screen")
    tab.goto((site / "tutorials" / "00-first.html").as_uri())
    assert (others.evaluate_all(SEEN), alone.evaluate_all(SEEN)) == (2, 0)
    switch.click()
    assert (others.evaluate_all(SEEN), alone.evaluate_all(SEEN)) == (0, 1)
    tab.reload()
    assert (others.evaluate_all(SEEN), alone.evaluate_all(SEEN)) == (0, 1)
    context.close()


@pytest.mark.browser
def test_without_scripts_there_is_no_switch(browser: Any, site: Path) -> None:
    context = browser.new_context(java_script_enabled=False)
    tab = context.new_page()
    tab.goto((site / "index.html").as_uri())
    alone = tab.locator("img.gg-alone")
    alone.locator("visible=true").wait_for()  # without scripts a page counts as loaded before it has been laid out
    assert alone.evaluate_all(SEEN) == 1
    assert tab.locator("img.gg-others").count() == 2
    for hidden in (".gg-others", ".gg-others-switch"):
        assert tab.locator(hidden).evaluate_all(SEEN) == 0
    context.close()
