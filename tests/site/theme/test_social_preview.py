"""What a page says of itself to those who share its address, and the picture that goes with it."""

from __future__ import annotations

from pathlib import Path

import pytest
from bs4 import BeautifulSoup
from matplotlib import image
from small_site import Project, start

from gpuguide.site.theme import assets, social_preview

ADDRESS = "https://example.org/guide/"


def test_the_picture_has_the_size_that_is_named_and_is_light_enough() -> None:
    path = assets.THEME / "static" / Path(social_preview.FILE).name
    height, width, _ = image.imread(path).shape
    assert (width, height) == social_preview.SIZE
    assert path.stat().st_size < 300_000, "the limit of messengers"


def tags(path: Path) -> dict[str, str]:
    found = BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser").select("meta[content]")
    return {str(tag.get("property") or tag.get("name")): str(tag["content"]) for tag in found}


@pytest.mark.slow
def test_a_page_names_its_address_and_its_picture_where_the_address_of_the_site_is_known(tmp_path: Path) -> None:
    project: Project = start(tmp_path)
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
        "og:image": f"{ADDRESS}{social_preview.FILE}",
        "og:image:width": "1200",
        "og:image:height": "630",
        "og:image:alt": found["og:image:alt"],
        "twitter:card": found["twitter:card"],
    }
    assert (project.html / social_preview.FILE).is_file()
    first = tags(project.html / "index.html")
    assert first["og:type"] == "website"
    assert first["og:description"] == first["description"] == "You will “see” & hear."
    assert project.build(settings={"html_title": "a guide"}).status == 0
    assert "og:url" not in tags(project.html / "index.html"), "no address that only the builder knows"
