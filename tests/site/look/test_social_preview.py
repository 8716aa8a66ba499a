"""What a page says of itself to those who share its address, and the picture that goes with it."""

from __future__ import annotations

from pathlib import Path

import pytest
from bs4 import BeautifulSoup
from matplotlib import image
from small_site import Project, start

from gpuguide.site.look import social_preview
from gpuguide.site.look.social_preview import Reading

ADDRESS = "https://example.org/guide/"
READING = Reading(0.97, "an H200")
SITE = Path(__file__).parents[3] / "_build" / "html"


def test_the_picture_has_the_size_that_is_told_and_is_the_same_each_time(tmp_path: Path) -> None:
    first, second = tmp_path / "first.png", tmp_path / "second.png"
    for path in (first, second):
        social_preview.draw(READING, "a guide", path)
    assert first.read_bytes() == second.read_bytes()
    height, width, _ = image.imread(first).shape
    assert (width, height) == social_preview.SIZE
    assert first.stat().st_size < 300_000, "the limit of messengers"


def test_the_picture_says_what_was_measured_and_nothing_is_cut_off() -> None:
    figure = social_preview.drawn(READING, "a guide")
    texts = [text for ax in figure.axes for text in ax.texts]
    assert {"97 % utilisation", "One thread that reads a clock, on an H200."} <= {text.get_text() for text in texts}
    for text in texts:
        box = text.get_window_extent()
        assert 0 < box.x0 < box.x1 < social_preview.SIZE[0]
        assert 0 < box.y0 < box.y1 < social_preview.SIZE[1]


def tags(path: Path) -> dict[str, str]:
    found = BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser").select("meta[content]")
    return {str(tag.get("property") or tag.get("name")): str(tag["content"]) for tag in found}


@pytest.mark.slow
def test_a_page_names_its_address_and_its_picture_where_the_address_of_the_site_is_known(tmp_path: Path) -> None:
    project: Project = start(tmp_path)
    project.record("copy-size")  # so that there is a reference GPU, without the record that is drawn
    project.page("index", 'You will "see" & hear.\n\n```{toctree}\ntutorials/00-first\n```', runs=False)
    project.page("tutorials/00-first", "You will begin.", runs=False)
    assert project.build(settings={"html_baseurl": ADDRESS, "html_title": "a guide"}).status == 0
    found = tags(project.html / "tutorials" / "00-first.html")
    assert {name: text for name, text in found.items() if name.startswith(("og:", "twitter:"))} == {
        "og:site_name": "a guide",
        "og:type": "article",
        "og:title": "00-first",
        "og:description": "You will begin.",
        "og:url": f"{ADDRESS}tutorials/00-first.html",
    }, "no picture where nothing was measured that could be drawn"
    first = tags(project.html / "index.html")
    assert first["og:type"] == "website"
    assert first["og:description"] == first["description"] == "You will “see” & hear."
    assert project.build(settings={"html_title": "a guide"}).status == 0
    assert "og:url" not in tags(project.html / "index.html"), "no address that only the builder knows"


@pytest.mark.skipif(not (SITE / "index.html").is_file(), reason="the site is not built; run `make site`")
def test_the_built_site_has_its_picture() -> None:
    height, width, _ = image.imread(SITE / social_preview.FILE).shape
    assert (width, height) == social_preview.SIZE
