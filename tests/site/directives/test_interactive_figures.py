"""Figures that one can try: scripts agree with the library, and work by keyboard, by pointer and without scripts."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_site import cell, start

from gpuguide import plotting
from gpuguide.errors import GpuguideError
from gpuguide.logits import adjust, softmax
from gpuguide.measure import folders, measured_ceilings
from gpuguide.site.theme.assets import THEME

PAGE = f"""
{cell("from gpuguide import plotting; plotting.roofline_to_try()")}

{cell('plotting.sampling_to_try([2.0, 1.0, 0.0, -1.0], ["a", "b", "c", "d"], "a word")')}

{cell('plotting.rank_to_try([[3.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 1.0]], "a matrix", first=1)')}
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with both figures."""
    made = start(tmp_path_factory.mktemp("site"))
    shutil.copytree(folders.published_folder(), made.library / "records", dirs_exist_ok=True)
    made.page("index", PAGE, benchmarks="ceilings, timing-mistakes")
    build = made.build()
    assert build.status == 0, build.output
    return made.html / "index.html"


def opened(browser: Any, path: Path, *, javascript: bool = True, width: int = 1280) -> Any:
    context = browser.new_context(viewport={"width": width, "height": 900}, java_script_enabled=javascript)
    tab = context.new_page()
    tab.on("pageerror", lambda error: pytest.fail(f"{path.name}: {error}"))
    tab.goto(path.as_uri())
    return tab


@pytest.fixture
def tab(browser: Any, page: Path) -> Iterator[Any]:
    found = opened(browser, page)
    yield found
    found.context.close()


@pytest.mark.browser
@pytest.mark.slow
def test_the_knobs_keep_what_the_library_keeps(browser: Any) -> None:
    draw = random.Random(17)
    cases = []
    for _ in range(60):
        row = sorted((draw.gauss(0, 3) for _ in range(40)), reverse=True)
        settings = {
            "temperature": draw.choice([0.0, 0.3, 1.0, 2.5]),
            "top_k": draw.choice([0, 1, 5, 100]),
            "top_p": draw.choice([0.05, 0.5, 0.9, 1.0]),
            "min_p": draw.choice([0.0, 0.1, 1.0]),
        }
        cases.append(([each - row[0] for each in row], settings))
    tab = browser.new_page()
    tab.add_script_tag(path=str(THEME / "static" / "sampling-knobs.js"))
    found = tab.evaluate("cases => cases.map(([row, settings]) => gpuguide.sampling(row, settings))", cases)
    tab.close()
    for (row, settings), shares in zip(cases, found, strict=True):
        expected = softmax(adjust(torch.tensor(row, dtype=torch.float64), **settings))
        torch.testing.assert_close(torch.tensor(shares, dtype=torch.float64), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.browser
@pytest.mark.slow
def test_the_rank_slider_multiplies_what_numpy_multiplies(browser: Any) -> None:
    draw = np.random.default_rng(18)
    tab = browser.new_page()
    tab.add_script_tag(path=str(THEME / "static" / "rank-slider.js"))
    for rows, columns in ((1, 1), (3, 7), (20, 8), (32, 48)):
        update = draw.normal(size=(rows, columns)) * np.exp(-draw.random(columns) * 3)
        shown = plotting.rank_to_try(update, "a matrix", first=0).interactive
        left, values, right = np.linalg.svd(update, full_matrices=False)
        for rank in {0, 1, min(rows, columns) // 2, min(rows, columns)}:
            found = tab.evaluate(
                "([b, a, rank]) => { const [left, right] = [gpuguide.unpacked(b), gpuguide.unpacked(a)];"
                " const whole = gpuguide.lowRank(left, right, left.columns);"
                " const product = gpuguide.lowRank(left, right, rank);"
                " return { values: [...product.values], ...gpuguide.keptOf(whole, product) }; }",
                [shown["b"], shown["a"], rank],
            )
            expected = (left[:, :rank] * values[:rank]) @ right[:rank]
            np.testing.assert_allclose(
                np.reshape(found["values"], update.shape), expected, atol=2e-3 * np.abs(update).max()
            )
            energy = float((values[:rank] ** 2).sum() / (values**2).sum())
            assert found["energy"] == pytest.approx(energy, abs=1e-3)
            assert found["error"] ** 2 == pytest.approx(1 - energy, abs=1e-3)
    tab.close()


@pytest.mark.browser
@pytest.mark.slow
def test_a_higher_rank_keeps_more_of_the_update(tab: Any) -> None:
    answer = tab.locator("#fig-rank-to-try .gg-try-answer")
    assert "Rank 1: B A keeps 64% of the update's squared size; the error is 60%" in answer.text_content()
    tab.get_by_label("Rank r").focus()
    tab.keyboard.press("ArrowRight")
    assert "Rank 2: B A keeps 93%" in answer.text_content()
    assert "2 × (3 + 3) = 12 numbers, 133% of 9" in answer.text_content()
    tab.keyboard.press("Home")
    assert answer.text_content().startswith("Rank 0: nothing is trained")
    assert not tab.locator(".gg-rank-b").is_visible()


@pytest.mark.parametrize(("update", "rank"), [([1.0], 1), ([[0.0]], 1), ([[float("nan")]], 1), ([[1.0]], 2)])
def test_an_update_without_that_rank_is_refused(update: Any, rank: int) -> None:
    with pytest.raises(GpuguideError, match="a rank up to its smaller side"):
        plotting.rank_to_try(update, "a matrix", first=rank)


@pytest.mark.browser
@pytest.mark.slow
def test_a_knob_is_turned_by_keyboard_and_back(tab: Any) -> None:
    answer = tab.locator("#fig-sampling-to-try .gg-try-answer")
    assert answer.text_content().startswith("4 of 4 tokens can be drawn")
    tab.get_by_label("Top-k").focus()
    tab.keyboard.press("ArrowRight")
    assert answer.text_content() == "1 of 4 tokens can be drawn; the entropy is 0.00 nats."
    assert tab.get_by_label("Top-k").get_attribute("aria-valuetext") == "1"
    assert tab.locator("#fig-sampling-to-try tr.gg-dropped").count() == 3
    tab.get_by_role("button", name="Reset").click()
    assert answer.text_content().startswith("4 of 4")


@pytest.mark.browser
@pytest.mark.slow
def test_the_roofline_tells_what_bounds_a_kernel_where_one_points(tab: Any) -> None:
    answer = tab.locator("#fig-roofline-to-try .gg-try-answer")
    slider = tab.get_by_label("Operations for each byte")
    slider.focus()
    tab.keyboard.press("Home")
    assert "memory bandwidth is the limit" in answer.text_content()
    box = tab.locator("#fig-roofline-to-try .gg-roofline-place").bounding_box()
    tab.mouse.move(box["x"] + 0.9 * box["width"], box["y"] + 0.5 * box["height"])
    assert "arithmetic is the limit" in answer.text_content()
    assert float(slider.input_value()) > 3
    before = answer.text_content()
    tab.get_by_label("Number format").select_option("fp32")
    assert "in fp32" in answer.text_content() != before


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.parametrize("width", [360, 1280])
def test_without_scripts_the_drawings_stand_there(browser: Any, page: Path, width: int) -> None:
    plain = opened(browser, page, javascript=False, width=width)
    seen = "all => all.map(each => each.checkVisibility())"
    assert plain.locator("figure.gg-figure img.only-light").evaluate_all(seen) == [True] * 3
    assert plain.locator(".gg-try :not(script)").count() == 0
    plain.context.close()
    scripted = opened(browser, page, width=width)
    assert scripted.locator("figure.gg-figure img").evaluate_all(seen) == [False] * 6
    assert scripted.evaluate("document.documentElement.scrollWidth") <= width
    scripted.context.close()


def test_a_distribution_that_is_none_is_refused() -> None:
    for logits, tokens in (([], []), ([1.0], ["a", "b"]), ([float("nan")], ["a"])):
        with pytest.raises(GpuguideError, match="finite logit and a text for each token"):
            plotting.sampling_to_try(logits, tokens, "a word")


def test_the_roofline_is_that_of_the_best_records() -> None:
    shown = plotting.roofline_to_try().interactive
    gpu = measured_ceilings.load_reference()
    assert shown["bandwidth"] == gpu.bandwidth["copy"].value
    roofs = {roof["name"]: roof["rate"] for roof in shown["roofs"]}
    assert roofs == {name: gpu.arithmetic[name].value for name in ("fp8", "bf16", "tf32", "fp32")}
    assert [point["name"] for point in shown["points"]] == ["square", "skinny"]
