"""The built site as readers see it, on a screen, a phone and paper: nothing is cut off, covered or out of reach."""

from __future__ import annotations

import io
import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from built_pages import parsed
from pypdf import PdfReader

SITE = Path(__file__).parents[3] / "_build" / "html"
FIT = "docs/will-it-fit.html"
CALCULATORS = [FIT, "docs/what-is-the-limit.html", "docs/how-long-to-move.html", "docs/how-often-to-save.html"]
WIDE, PHONE = 1280, 390

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(
        not (SITE / "index.html").is_file(), reason="the site is not built; run `make site`, or `make test`, which does"
    ),
]


class Opened:
    """A context for one width, and pages opened in it one after the other."""

    def __init__(self, browser: Any, width: int, height: int = 844) -> None:
        self.context = browser.new_context(viewport={"width": width, "height": height}, color_scheme="light")
        self.tab = self.context.new_page()

    def page(self, name: str) -> Any:
        self.tab.goto(f"{SITE.as_uri()}/{name}", wait_until="load")
        return self.tab


@pytest.fixture
def phone(browser: Any) -> Iterator[Opened]:
    opened = Opened(browser, PHONE)
    yield opened
    opened.context.close()


@pytest.fixture
def wide(browser: Any) -> Iterator[Opened]:
    opened = Opened(browser, WIDE, 900)
    yield opened
    opened.context.close()


# --- few colours -----------------------------------------------------------------------------------------


def test_buttons_have_an_edge_in_colours_of_the_system(browser: Any) -> None:
    context = browser.new_context(viewport={"width": WIDE, "height": 900}, forced_colors="active")
    page = context.new_page()
    page.goto(f"{SITE.as_uri()}/index.html")
    edges = page.locator(".gg-start a, .gg-fit-question button").evaluate_all(
        "(all) => all.map((each) => getComputedStyle(each).borderTopWidth)"
    )
    context.close()
    assert edges
    assert "0px" not in edges


# --- calculators -----------------------------------------------------------------------------------------


COVERED = """() => {
    const line = document.querySelector(".gg-verdict-line");
    const box = line.getBoundingClientRect();
    const places = [[4, 4], [box.width / 2, box.height / 2], [box.width - 4, box.height - 4]];
    return places.map(([x, y]) => document.elementFromPoint(box.x + x, box.y + y))
        .filter(element => !line.contains(element)).map(element => element?.outerHTML.slice(0, 120) ?? "outside");
}"""


@pytest.mark.parametrize("width", [WIDE, PHONE])
@pytest.mark.parametrize("name", CALCULATORS)
def test_nothing_ever_lies_over_the_verdict(browser: Any, name: str, width: int) -> None:
    """Going down, and up again, which brings the theme's button that leads back to the top."""
    opened = Opened(browser, width)
    page = opened.page(name)
    page.locator(".gg-verdict-line strong").wait_for()
    bottom = page.evaluate("document.querySelector('.gg-calculator').getBoundingClientRect().bottom + scrollY")
    places = list(range(0, int(bottom) - 500, 300))
    for place in [*places, *reversed(places)]:
        page.evaluate("place => scrollTo({top: place, behavior: 'instant'})", place)
        page.wait_for_timeout(60)
        assert page.evaluate(COVERED) == [], place
    opened.context.close()


def test_in_a_low_window_the_verdict_does_not_lie_over_the_form(browser: Any) -> None:
    """As on a phone on its side, or a screen at 200 %."""
    opened = Opened(browser, WIDE // 2, 400)
    page = opened.page(FIT)
    page.locator(".gg-calculator select").first.scroll_into_view_if_needed()
    assert (
        page.evaluate(
            """() => {
            const line = document.querySelector(".gg-verdict-line").getBoundingClientRect();
            return [...document.querySelectorAll(".gg-calculator :is(select, input)")]
                .filter(field => field.checkVisibility())
                .map(field => field.getBoundingClientRect())
                .filter(field => field.top < line.bottom && field.bottom > line.top).length;
        }"""
        )
        == 0
    )
    opened.context.close()


@pytest.mark.parametrize(("width", "height"), [(WIDE, 900), (PHONE, 844), (844, PHONE)])
def test_a_suggestion_that_is_applied_leaves_the_focus_at_the_verdict_in_sight(
    browser: Any, width: int, height: int
) -> None:
    opened = Opened(browser, width, height)
    page = opened.page(FIT)
    before = page.locator(".gg-verdict-line").inner_text()
    page.locator(".gg-apply").nth(3).focus()
    page.keyboard.press("Enter")
    assert page.locator(".gg-verdict-line").inner_text() != before
    assert page.evaluate("document.activeElement.classList.contains('gg-verdict-line')")
    page.wait_for_timeout(100)
    assert page.evaluate(COVERED) == []
    page.keyboard.press("Shift+Tab")
    assert page.evaluate("document.activeElement.closest('.gg-calculator') !== null"), "the order goes on from there"
    opened.context.close()


SEEN_CELLS = """() => [...document.querySelectorAll(".gg-calculator :is(td, th)")]
    .filter(cell => cell.checkVisibility()).map(cell => cell.innerText.trim())"""


def test_a_printed_calculator_has_every_cell_and_every_line(wide: Opened) -> None:
    page = wide.page(FIT)
    page.evaluate("document.querySelectorAll('.gg-calculator details').forEach(fold => { fold.open = true; })")
    cells = page.evaluate(SEEN_CELLS)
    lines = page.locator(".gg-call code").inner_text().splitlines()
    assert len(lines) > 2
    page.emulate_media(media="print")
    assert page.evaluate(SEEN_CELLS) == cells
    assert page.locator(".gg-call code").inner_text().splitlines() == lines
    sheets = "".join(sheet.extract_text() for sheet in PdfReader(io.BytesIO(page.pdf(format="A4"))).pages)
    text = re.sub(r"\s+", "", unicodedata.normalize("NFKC", sheets))  # without ligatures
    assert [cell for cell in cells if re.sub(r"\s+", "", unicodedata.normalize("NFKC", cell)) not in text] == []
    colours = page.evaluate(
        "[...document.querySelectorAll('.gg-calculator .gg-swatch')].map(e => getComputedStyle(e).printColorAdjust)"
    )
    assert set(colours) == {"exact"}


def test_every_part_of_the_memory_has_a_colour_and_the_verdict_that_of_its_kind(wide: Opened) -> None:
    page = wide.page(f"{FIT}?gpu=h200-sxm")
    for selector, colour in ((".gg-step polygon[style]", "fill"), (".gg-result .gg-swatch", "backgroundColor")):
        colours = page.locator(f".gg-calculator {selector}").evaluate_all(
            f"all => all.map(each => getComputedStyle(each).{colour})"
        )
        assert len(colours) >= 4
        assert len(set(colours)) == len(colours)
        assert "rgba(0, 0, 0, 0)" not in colours
    box = page.locator(".gg-field-flag:visible").first
    assert box.evaluate("field => getComputedStyle(field).display") == "flex"
    edge = "line => getComputedStyle(line).borderLeftColor"
    seen = set()
    for batch in ("1", "1000"):
        page.select_option("#gg-purpose", "generate")
        page.fill("#gg-batch", batch)
        seen.add(page.locator(".gg-verdict-line").evaluate(edge))
    assert len(seen) == 2


# --- figures, formulas and tables ------------------------------------------------------------------------


def test_captions_have_the_weight_of_text_and_stand_at_the_left(wide: Opened) -> None:
    style = """all => all.filter(each => each.checkVisibility()).map(each => [getComputedStyle(each).fontWeight >= 400,
        ["left", "start"].includes(getComputedStyle(each).textAlign), getComputedStyle(each).paddingLeft])"""
    for name in (*CALCULATORS, "tutorials/00-measure-a-gpu.html", "index.html"):
        captions = wide.page(name).locator("article figcaption").evaluate_all(style)
        assert all(each == [True, True, "0px"] for each in captions), name


EDGES = """() => [...document.querySelectorAll(
        "article :is(.pst-scrollable-table-container, div.math, .gg-scroll, .highlight pre)")]
    .filter(place => place.checkVisibility() && place.scrollWidth > place.clientWidth + 2)
    .map(place => getComputedStyle(place).maskImage !== "none")"""


@pytest.mark.parametrize("name", ["docs/status.html", "docs/hardware.html", "tutorials/22-flash-attention.html"])
def test_what_goes_on_to_the_right_shows_it_until_its_end(phone: Opened, name: str) -> None:
    page = phone.page(name)
    page.wait_for_function(f"({EDGES})().every(Boolean)")
    assert page.evaluate(EDGES)
    page.evaluate("""document.querySelectorAll(".pst-scrollable-table-container, div.math, pre")
        .forEach(place => { place.scrollLeft = place.scrollWidth; })""")
    page.wait_for_function(f"!({EDGES})().some(Boolean)")


NAMES = """() => [...document.querySelectorAll("article .pst-scrollable-table-container")]
    .filter(place => place.scrollWidth > place.clientWidth + 2)
    .map(place => place.querySelector("tbody tr > *").getBoundingClientRect().width / innerWidth)"""


@pytest.mark.parametrize("name", ["docs/status.html", "docs/hardware.html", "docs/measurements.html"])
def test_what_names_a_row_leaves_most_of_a_phone_to_the_row(phone: Opened, name: str) -> None:
    shares = phone.page(name).evaluate(NAMES)
    assert max(shares, default=0) < 0.4


@pytest.mark.parametrize("width", [WIDE, PHONE])
def test_no_field_of_the_record_format_is_broken(browser: Any, width: int) -> None:
    opened = Opened(browser, width)
    names = opened.page("docs/record-format.html").locator("article td:first-child code")
    lines = names.evaluate_all("all => all.map(each => each.getClientRects().length)")
    opened.context.close()
    assert len(lines) > 10
    assert set(lines) == {1}


def test_verdicts_stand_below_each_other_and_are_told_apart(wide: Opened) -> None:
    page = wide.page("docs/claims.html")
    looks = page.locator("details.gg-claim > summary .gg-verdict").evaluate_all(
        """all => all.map(each => [each.textContent, getComputedStyle(each).color,
            getComputedStyle(each, "::before").content, each.getBoundingClientRect().left])"""
    )
    assert len({left for *_, left in looks}) == 1
    kinds = {(name, colour, mark) for name, colour, mark, _ in looks}
    assert len(kinds) == len({colour for _, colour, _ in kinds}) == len({mark for *_, mark in kinds}) == 5


# --- navigation ------------------------------------------------------------------------------------------


def test_the_drawer_of_the_landing_page_leads_somewhere_and_closes(phone: Opened) -> None:
    page = phone.page("index.html")
    page.get_by_role("button", name="Site navigation").click()
    drawer = page.locator("#pst-primary-sidebar-modal")
    links = drawer.get_by_role("link").evaluate_all("all => all.map(each => each.href)")
    assert {f"{SITE.as_uri()}/{name}" for name in CALCULATORS} <= set(links)
    parts = [link for link in links if "tutorials/index.html#part-" in link]
    text = (SITE / "tutorials" / "index.html").read_text(encoding="utf-8")
    assert len(parts) >= 4
    assert all(f'id="{link.partition("#")[2]}"' in text for link in parts)
    drawer.get_by_role("button", name="Close").click()
    page.wait_for_function("!document.querySelector('#pst-primary-sidebar-modal').open")


@pytest.mark.parametrize("toggle", ["primary", "secondary"])
def test_every_drawer_has_a_button_that_closes_it(phone: Opened, toggle: str) -> None:
    page = phone.page(FIT)
    page.locator(f".{toggle}-toggle:visible").click()
    drawer = page.locator(f"#pst-{toggle}-sidebar-modal")
    drawer.get_by_role("button", name="Close").click()
    page.wait_for_function(f"!document.querySelector('#pst-{toggle}-sidebar-modal').open")


# --- words -----------------------------------------------------------------------------------------------


def test_an_option_keeps_its_hyphens() -> None:
    """Whoever copies --nodes from a sentence must not get a dash."""
    dash = re.compile(r"[\s“(]–[a-z]\S*")
    found = {}
    for path in [*SITE.glob("*.html"), *SITE.glob("[dt]*/*.html")]:
        article = parsed(path).select_one("article, main")
        if hits := dash.findall(article.get_text()):
            found[path.name] = hits
    assert found == {}


def test_percent_is_written_in_one_way() -> None:
    apart = re.compile(r"\d[\s\u00a0]%(?![\w(])")
    found = {}
    for path in [*SITE.glob("*.html"), *SITE.glob("[dt]*/*.html")]:
        if path.name == "measurements.html":  # it quotes what records hold
            continue
        article = parsed(path).select_one("article, main")
        if hits := apart.findall(article.get_text()):
            found[path.name] = hits
    assert found == {}
