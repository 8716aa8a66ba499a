"""The built site, read as files: links, anchors, alternative texts, and nothing from elsewhere."""

from __future__ import annotations

import inspect
import re
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from bs4 import BeautifulSoup, Tag
from built_pages import parse, parsed

from gpuguide.plotting import text_boxes
from gpuguide.systems import ceilings

SITE = Path(__file__).parents[2] / "_build" / "html"
TUTORIALS = sorted(SITE.glob("tutorials/[0-9]*.html"))
PAGES = [page for page in sorted(SITE.glob("**/*.html")) if "_static" not in page.parts]

pytestmark = pytest.mark.skipif(not PAGES, reason="the site is not built; run `make site`, or `make test`, which does")


COLOURED = re.compile(r'<span class="[\w ]*">|</span>')
"""What only colours words, most of all tags"""


class Outline(HTMLParser):
    """What a page links to, loads and shows, read in one pass: the pages of source are too many to parse whole."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.addresses: list[str] = []
        self.loaded: list[str] = []
        self.alternatives: list[str] = []
        self.feed(COLOURED.sub("", text))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element's identifier, the address that it names, and the text of an image."""
        given = dict(attrs)
        if name := given.get("id"):
            self.ids.add(name)
        address = given.get("href") if tag in ("a", "link") else given.get("src") if tag in ("script", "img") else None
        if address:
            self.addresses.append(address)
        if (tag == "link" and given.get("rel") == "stylesheet") or tag in ("script", "img", "iframe", "source"):
            self.loaded += filter(None, (given.get("href"), given.get("src")))
        if tag == "img":
            if "gg-thumbnail" not in (given.get("class") or ""):  # it stands beside the title of what it shows
                self.alternatives.append(given.get("alt") or "")


@cache
def outline(path: Path) -> Outline:
    return Outline(path.read_text(encoding="utf-8"))


def names(page: Path) -> str:
    return page.relative_to(SITE).as_posix()


def leads_somewhere(page: Path, link: str) -> bool:
    """Return whether a link of a page leads to another site, or to a file and a place in it that there are."""
    address = urlsplit(link)
    if address.scheme or address.netloc:
        return True
    folder = SITE if address.path.startswith("/") else page.parent  # as in 404.html, which is sent at any depth
    target = (folder / unquote(address.path).lstrip("/")).resolve() if address.path else page
    if not address.fragment or target.suffix != ".html" or page.name == "search.html":
        return target.is_file()
    return target.is_file() and unquote(address.fragment) in outline(target).ids


def test_internal_links_lead_somewhere() -> None:
    broken = {
        names(page): [link for link in set(outline(page).addresses) if not leads_somewhere(page, link)]
        for page in PAGES
    }
    assert {page: links for page, links in broken.items() if links} == {}


def test_nothing_is_loaded_from_elsewhere() -> None:
    loaded = {names(page): [address for address in outline(page).loaded if urlsplit(address).netloc] for page in PAGES}
    assert {page: addresses for page, addresses in loaded.items() if addresses} == {}


def test_every_image_has_a_text() -> None:
    """A file name is no alternative text."""
    for page in PAGES:
        for text in outline(page).alternatives:
            assert text, names(page)
            assert not text.lower().endswith((".png", ".svg", ".jpg")), names(page)


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
        if "gg-figure" not in page.read_text(encoding="utf-8"):
            continue
        for figure in parsed(page).select("figure.gg-figure"):
            assert str(figure["id"]).startswith("fig-"), page
            assert figure.select_one("figcaption .gg-figure-title")
            sources = [str(source["srcset"]) for source in figure.select("picture > source")]
            drawn = 2 if figure.select_one(".gg-others-switch") else 1  # the second time with other GPUs
            assert len(sources) == len(figure.select("picture")) == 2 * drawn
            assert all((page.parent / source).is_file() for source in sources)


@pytest.mark.parametrize("page", TUTORIALS, ids=names)
def test_a_page_is_in_the_form(page: Path) -> None:
    """What the lint counts in the source, counted in what is shown, with captions and claims.

    Stamps are not read, and checklists, like tables, are looked up.
    """
    article = parse(page).select_one("article.bd-article")
    assert article is not None
    sections = [str(section.get("id")) for section in article.select("section > section")]
    assert sections[0] == "in-short"
    for fold in article.select("details:not(.gg-stamp, .gg-downloads)"):
        follower = fold.find_next_sibling() or (fold.parent and fold.parent.find_next_sibling())
        inner = follower.find() if isinstance(follower, Tag) and "cell" in (follower.get("class") or []) else None
        assert not any(isinstance(each, Tag) and each.name == "details" for each in (follower, inner)), fold
    read_by_nobody = ", .headerlink, .gg-stamp, .gg-figure-links"
    not_counted = "details, .highlight, table, .gg-symptom, .gg-checklists, math, script, #exercises, #further-reading"
    for unseen in article.select(not_counted + read_by_nobody):
        unseen.decompose()
    assert len(article.get_text(" ").split()) <= 3000


def test_no_unfinished_page_is_published() -> None:
    assert (SITE / "index.html").is_file()
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        has_mark = "TODO" in text  # if only in an attribute, it is not seen
        assert not has_mark or "TODO" not in BeautifulSoup(text, "html.parser").get_text(), names(page)


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
        listing = (SITE / "_modules" / f"{module}.html").read_text(encoding="utf-8")
        source = BeautifulSoup(listing, "html.parser").find(id=inside)
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
    pages = [page.read_text(encoding="utf-8") for page in (SITE / "docs" / "api").glob("*.html")]
    fields = {field for page in pages for field in re.findall(r'<dt class="field-\w+">([^<]*)', page)}
    assert "Parameters" in fields
    assert "Type" not in fields


@pytest.mark.parametrize("page", TUTORIALS, ids=names)
def test_the_text_of_no_link_says_nothing(page: Path) -> None:
    texts = {link.get_text(" ", strip=True).lower() for link in parsed(page).select("a[href]")}
    assert not texts & {"here", "this", "more", "link", "this link", "this page", "click here", "read more", "start"}
