"""The built site, read as files: links, anchors, alternative texts, and nothing from elsewhere."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from bs4 import BeautifulSoup

SITE = Path(__file__).parents[2] / "_build" / "html"
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
        elif address.fragment and target.suffix == ".html" and page.name not in ("search.html", "genindex.html"):
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


def test_no_unfinished_page_is_published() -> None:
    assert (SITE / "index.html").is_file()
    for page in PAGES:
        assert "TODO" not in parsed(page).get_text(), names(page)


def test_every_record_is_offered_in_three_formats() -> None:
    from gpuguide.measure import store

    for record in store.published_records():
        for kind in ("json", "csv", "arrow"):
            assert (SITE / "records" / record.device / f"{record.benchmark}.{kind}").is_file()


def test_the_api_reference_leads_to_the_source_and_the_source_back() -> None:
    """Where a package passes a name on, and where it does not."""
    described = {
        "logits": ("gpuguide.logits.softmax", "gpuguide/logits/probabilities", "softmax"),
        "costs": ("gpuguide.costs.memory.training.Step", "gpuguide/costs/memory/training", "Step"),
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
    text = " ".join(described.find_next_sibling("dd").get_text().split())  # type: ignore[union-attr]
    assert text.startswith("Bytes an element of an operand. TF32 is a way of computing: its operands are stored as")
    fields = {
        field.get_text() for page in (SITE / "docs" / "api").glob("*.html") for field in parsed(page).select("dt")
    }
    assert "Parameters:" in fields
    assert "Type:" not in fields
