"""The built site, read as files: links, anchors, alternative texts, and nothing from elsewhere."""

from __future__ import annotations

import inspect
import re
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from bs4 import BeautifulSoup, Tag

from gpuguide.plotting import text_boxes
from gpuguide.systems import ceilings

SITE = Path(__file__).parents[2] / "_build" / "html"
TUTORIALS = sorted(SITE.glob("tutorials/[0-9]*.html"))
PAGES = [page for page in sorted(SITE.glob("**/*.html")) if "_static" not in page.parts]

pytestmark = pytest.mark.skipif(not PAGES, reason="the site is not built; run `make site`, or `make test`, which does")


@cache
def parsed(path: Path) -> BeautifulSoup:
    return BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")


def names(page: Path) -> str:
    return page.relative_to(SITE).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=names)
def test_internal_links_lead_somewhere(page: Path) -> None:
    broken = []
    for link in parsed(page).select("a[href], link[href], script[src], img[src]"):
        address = urlsplit(str(link.get("href") or link.get("src")))
        if address.scheme or address.netloc:
            continue
        folder = SITE if address.path.startswith("/") else page.parent  # as in 404.html, which is sent at any depth
        target = (folder / unquote(address.path).lstrip("/")).resolve() if address.path else page
        if not target.is_file():
            broken.append(address.geturl())
        elif address.fragment and target.suffix == ".html" and page.name != "search.html":
            if not parsed(target).find(id=unquote(address.fragment)):
                broken.append(address.geturl())
    assert not broken


@pytest.mark.parametrize("page", PAGES, ids=names)
def test_nothing_is_loaded_from_elsewhere(page: Path) -> None:
    loaded = parsed(page).select("script[src], img[src], iframe[src], source[src], link[rel=stylesheet][href]")
    addresses = [str(element.get("src") or element.get("href")) for element in loaded]
    assert not [address for address in addresses if urlsplit(address).netloc]


@pytest.mark.parametrize("page", PAGES, ids=names)
def test_every_image_has_a_text(page: Path) -> None:
    for image in parsed(page).select("img"):
        assert image.get("alt"), image
        assert not str(image["alt"]).lower().endswith((".png", ".svg", ".jpg")), "a file name is no alternative text"


FIGURES = sorted((SITE / "_images").glob("*.svg"))
PHONE, WINDOW = 334, 519
"""Pixels that a figure has on a screen of 360 pixels, and in the smallest window that shows the wide drawing"""


@pytest.mark.parametrize("figure", FIGURES, ids=lambda path: path.stem[:8])
def test_the_text_of_every_figure_lies_within_it_and_can_be_read(figure: Path) -> None:
    svg = figure.read_text(encoding="utf-8")
    assert text_boxes.cut_off(svg) == []
    on_a_phone = text_boxes.view_box(svg)[0] < PHONE
    assert text_boxes.too_small(svg, screen=PHONE if on_a_phone else WINDOW) == []


def test_every_figure_has_an_address_of_its_own_words_and_a_drawing_for_a_phone() -> None:
    for page in PAGES:
        for figure in parsed(page).select("figure.gg-figure"):
            assert str(figure["id"]).startswith("fig-"), page
            assert figure.select_one("figcaption .gg-figure-title")
            sources = [str(source["srcset"]) for source in figure.select("picture > source")]
            drawn = 2 if figure.select_one(".gg-others-switch") else 1  # the second time with other GPUs
            assert len(sources) == len(figure.select("picture")) == 2 * drawn
            assert all((page.parent / source).is_file() for source in sources)


@pytest.mark.parametrize("page", TUTORIALS, ids=names)
def test_a_page_is_in_the_form(page: Path) -> None:
    """What the lint counts in the source, counted in what is shown: captions and claims are read, stamps are not."""
    article = BeautifulSoup(page.read_text(encoding="utf-8"), "html.parser").select_one("article.bd-article")
    assert article is not None
    sections = [str(section.get("id")) for section in article.select("section > section")]
    assert sections[0] == "in-short"
    for fold in article.select("details"):
        follower = fold.find_next_sibling() or (fold.parent and fold.parent.find_next_sibling())
        inner = follower.find() if isinstance(follower, Tag) and "cell" in (follower.get("class") or []) else None
        assert not any(isinstance(each, Tag) and each.name == "details" for each in (follower, inner)), fold
    read_by_nobody = ", .headerlink, .gg-stamp, .gg-figure-links"
    not_counted = "details, .highlight, table, math, script, #exercises, #further-reading"
    for unseen in article.select(not_counted + read_by_nobody):
        unseen.decompose()
    assert len(article.get_text(" ").split()) <= 3000


def test_no_unfinished_page_is_published() -> None:
    assert (SITE / "index.html").is_file()
    for page in PAGES:
        assert "TODO" not in parsed(page).get_text(), names(page)


def test_every_record_is_offered_in_three_formats() -> None:
    from gpuguide.measure import store

    for record in store.load_all_published():
        for kind in ("json", "csv", "arrow"):
            assert (SITE / "records" / record.device / f"{record.benchmark}.{kind}").is_file()


def test_the_api_reference_leads_to_the_source_and_the_source_back() -> None:
    """Where a package passes a name on, and where it does not."""
    described = {
        "logits": ("gpuguide.logits.softmax", "gpuguide/logits/probabilities", "softmax"),
        "costs": ("gpuguide.costs.roofline.time_floor", "gpuguide/costs/roofline", "time_floor"),
    }
    for name, (full, module, inside) in described.items():
        term = parsed(SITE / "docs" / "api" / f"{name}.html").find(id=full)
        assert term is not None, full
        links = [str(link["href"]) for link in term.select("a[href]")]  # type: ignore[union-attr]
        assert f"../../_modules/{module}.html#{inside}" in links
        source = parsed(SITE / "_modules" / f"{module}.html").find(id=inside)
        back = source.select_one("a.viewcode-back") if source else None  # type: ignore[union-attr]
        assert back is not None
        assert str(back["href"]).endswith(f"docs/api/{name}.html#{full}")


def test_an_attribute_is_described_as_it_was_written() -> None:
    """What stands before a colon is no type: those are in the signature."""
    described = parsed(SITE / "docs" / "api" / "costs.html").find(id="gpuguide.systems.ceilings.ELEMENT_SIZE")
    assert described is not None
    source = inspect.getsource(ceilings)
    written = re.search(r'^ELEMENT_SIZE\b.*?^"""(.*?)"""', source, re.DOTALL | re.MULTILINE)
    assert written is not None
    text = described.find_next_sibling("dd").get_text()  # type: ignore[union-attr]
    assert text.split() == written[1].split()
    fields = {
        field.get_text() for page in (SITE / "docs" / "api").glob("*.html") for field in parsed(page).select("dt")
    }
    assert "Parameters:" in fields
    assert "Type:" not in fields


@pytest.mark.parametrize("page", TUTORIALS, ids=names)
def test_the_text_of_no_link_says_nothing(page: Path) -> None:
    texts = {link.get_text(" ", strip=True).lower() for link in parsed(page).select("a[href]")}
    assert not texts & {"here", "this", "more", "link", "this link", "this page", "click here", "read more", "start"}
