"""Search in a browser: what it finds, by the keyboard, from a file, in folds, for odd questions, without its files."""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import barriers
import pytest

from gpuguide.site.search_and_links import search_entries
from gpuguide.site.search_and_links.search_entries import plain_name
from gpuguide.site.theme.assets import THEME

SITE = Path(__file__).parents[3] / "_build" / "html"
STATIC = THEME / "static"
QUESTIONS: dict[str, dict[str, str]] = tomllib.loads(
    Path(__file__).with_name("questions.toml").read_text(encoding="utf-8")
)
FILES = ("minisearch/minisearch.js", "search-entries.js")
ODD = {
    "one letter": "c",
    "one letter of another script": "注",
    "a word of another script": "注意力机制",
    "right to left": "ذاكرة الفيديو",
    "accents": "Ätzende Öre",
    "an emoji": "🔥🔥",
    "signs alone": "?!()[]{}*+~^:\"'\\",
    "markup": "<img src=x onerror=alert(1)>",
    "a word of 500 letters": 500 * "x",
    "500 letters of words": 100 * "gpu ",
    "names of what every object has": "constructor __proto__ toString",
    "spaces": "     ",
}

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(
        not (SITE / "index.html").is_file(), reason="the site is not built; run `make site`, or `make test`, which does"
    ),
]


@pytest.fixture(scope="module")
def page(browser: Any) -> Iterator[Any]:
    """A page two folders deep, opened from its file."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    yield page
    context.close()


@pytest.fixture(autouse=True)
def opened_anew(page: Any) -> None:
    page.set_viewport_size({"width": 1280, "height": 900})
    page.emulate_media(color_scheme="light")
    page.goto((SITE / "docs" / "api" / "costs.html").as_uri())


def open_box(page: Any) -> None:
    page.keyboard.press("Control+k")
    page.wait_for_function("searchBox.ready")


def ask(page: Any, query: str) -> list[str]:
    """Type a query into the open box and return the addresses of what it lists, from the site's root."""
    page.locator("#pst-search-dialog input").fill(query)
    addresses = page.locator("#search-box-results [role=option]").evaluate_all("all => all.map(each => each.href)")
    return [address.removeprefix(f"{SITE.as_uri()}/") for address in addresses]


def answers(found: str, wanted: str) -> bool:
    """Return whether an address is the one that is wanted, the number of its page aside."""
    place, _, anchor = re.sub(r"\?find=[^#]*", "", found).partition("#")
    plain = without_number(place)
    return wanted == (f"{plain}#{anchor}" if "#" in wanted else plain)


def without_number(address: str) -> str:
    return re.sub(r"/\d+-", "/", address)


@pytest.mark.parametrize(("list_of", "first"), [("three", 3), ("two", 2), ("names", 3)])
def test_what_is_sought_comes_first(page: Any, list_of: str, first: int) -> None:
    open_box(page)
    missed = {}
    for query, wanted in QUESTIONS[list_of].items():
        found = ask(page, query)
        if not any(answers(address, wanted) for address in found[:first]):
            missed[query] = found[:first]
    assert missed == {}


def test_the_search_page_answers_as_the_box_does(page: Any) -> None:
    open_box(page)
    listed = [address for address in ask(page, "softmax overflow") if not address.startswith("search.html")]
    page.goto(f"{(SITE / 'search.html').as_uri()}?q=softmax+overflow")
    page.wait_for_selector("#search-results li")
    items = page.locator("#search-results a").evaluate_all("all => all.map(each => each.href)")
    assert [address.removeprefix(f"{SITE.as_uri()}/") for address in items[: len(listed)]] == listed
    assert page.locator("#search-status").inner_text() == f"{len(items)} results"
    assert page.get_by_role("searchbox", name="What are you looking for?").input_value() == "softmax overflow"


def test_every_page_and_every_figure_can_be_found(page: Any) -> None:
    """By its own words: a figure by its caption."""
    open_box(page)
    entries = page.evaluate("siteSearch.entries.map(({ kind, name, address }) => [kind, name, address])")
    figures = [(name, address) for kind, name, address in entries if kind == "Figure"]
    drawn = sum(
        len(re.findall(r'<figure[^>]* id="', path.read_text(encoding="utf-8")))
        for path in SITE.glob("**/*.html")
        if "_static" not in path.parts
    )
    assert len(figures) == drawn > 0
    for name, address in figures:
        assert any(answers(found, without_number(address)) for found in ask(page, f"figure {name}")[:3]), name
    calculators = {address for kind, _, address in entries if kind == "Calculator"}
    assert calculators >= {"docs/will-it-fit.html", "docs/what-is-the-limit.html", "docs/how-long-to-move.html"}


def test_nothing_is_listed_twice() -> None:
    lines = (SITE / "_static" / "search-entries.js").read_text(encoding="utf-8").splitlines()[1:-1]
    rows = [json.loads(line.removesuffix(",")) for line in lines]
    names = Counter((name, address) for _, name, address, *_ in rows)
    assert not [each for each, count in names.items() if count > 1]
    kinds = {address: kind for kind, _, address, *_ in rows if "hardware.html#gpu-" in address}
    assert {search_entries.KINDS[kind] for kind in kinds.values()} == {"GPU"}


def test_words_are_given_for_pages_that_there_are() -> None:
    pages = {plain_name(path.with_suffix("").as_posix()) for path in SITE.glob("**/*.html")}
    assert set(search_entries.words()["asked"]) <= pages, "search_words.toml names a page that is gone"
    tutorials = {plain_name(path.stem) for path in (SITE / "tutorials").glob("[0-9]*.html")}
    assert tutorials <= set(search_entries.words()["asked"]), "search_words.toml says nothing about a tutorial"


@pytest.mark.parametrize("query", ODD.values(), ids=ODD)
def test_odd_questions_are_answered_calmly(page: Any, query: str) -> None:
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    open_box(page)
    page.locator("#pst-search-dialog input").fill(query)
    status = page.locator("#search-box-status")
    if page.locator("#search-box-results [role=option]").count():
        assert re.fullmatch(r"\d+ results?", status.inner_text())
        assert page.evaluate("q => siteSearch.asked(q).length", query) <= 16
    elif query.strip():
        assert status.inner_text().startswith("Nothing here for “")
        assert len(status.inner_text()) < 150
        assert status.bounding_box()["width"] > 100
    box = page.locator("#pst-search-dialog").bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 1280
    assert page.locator("#pst-search-dialog img").count() == 0
    page.goto(f"{(SITE / 'search.html').as_uri()}?q={page.evaluate('encodeURIComponent', query)}")
    page.wait_for_function("!/Searching/.test(document.getElementById('search-status').textContent)")
    assert page.locator("article img").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert errors == []


FOLDED = """() => {
    const article = document.querySelector("article");
    const told = [...article.querySelectorAll("section[id] details:not([open]) p")];
    for (const folded of told.filter((each) => !each.closest(".gg-claim"))) {
        const rest = new Set(words(article.textContent.replace(folded.textContent, "")).map(stem));
        const own = words(folded.textContent).filter((word) => /^[a-z]{6,}$/.test(word) && !rest.has(stem(word)));
        const section = folded.closest("section[id]").id;
        if (own.length >= 2) return { section, words: own.slice(0, 2), text: folded.textContent };
    }
}"""
"""A paragraph in a closed fold, two words that stand nowhere else on the page, and the section around it"""


def test_a_hit_in_a_closed_fold_opens_it(page: Any) -> None:
    tutorials = sorted((SITE / "tutorials").glob("[0-9]*.html"))
    found: dict[str, Any] | None = None
    for tutorial in tutorials:
        page.goto(tutorial.as_uri())
        if found := page.evaluate(FOLDED):
            break
    assert found is not None, "no tutorial has text of its own in a fold"
    page.goto((SITE / "docs" / "how-we-measure.html").as_uri())
    open_box(page)
    listed = ask(page, " ".join(found["words"]))
    wanted = f"tutorials/{tutorial.name}#{found['section']}"
    (index, *_) = [index for index, each in enumerate(listed) if re.sub(r"\?find=[^#]*", "", each) == wanted]
    page.get_by_role("option").nth(index).click()
    page.wait_for_url(f"**/{tutorial.name}*")
    page.wait_for_function("document.activeElement.tagName === 'P'")
    focused = page.evaluate_handle("document.activeElement").as_element()
    assert focused.text_content() == found["text"]
    assert focused.is_visible()
    assert 0 <= focused.bounding_box()["y"] <= 900
    assert "find=" not in page.url
    assert page.evaluate("CSS.highlights.get('sought').size") >= len(found["words"])


def test_a_claim_is_found_and_stands_open(page: Any) -> None:
    open_box(page)
    claim = page.evaluate("siteSearch.entries.find(({ kind }) => kind === 'Claim')")
    (index,) = [index for index, found in enumerate(ask(page, claim["name"])) if found == claim["address"]][:1]
    page.get_by_role("option").nth(index).click()
    page.wait_for_url("**/docs/claims.html#*")
    assert page.locator(f"#{claim['address'].partition('#')[2]}").is_visible()


def test_its_files_are_loaded_when_the_box_is_opened(page: Any) -> None:
    def loaded() -> list[int]:
        return [page.locator(f"script[src$='{file}']").count() for file in FILES]

    assert loaded() == [0, 0]
    open_box(page)
    page.keyboard.press("Escape")
    page.keyboard.press("Control+k")
    assert loaded() == [1, 1]


def test_by_the_keyboard_and_for_a_screen_reader(page: Any) -> None:
    open_box(page)
    field = page.get_by_role("combobox", name="Search")
    assert field.get_attribute("aria-expanded") == "false"
    page.keyboard.type("ridge")
    assert field.get_attribute("aria-expanded") == "true"
    options = page.get_by_role("option").all()
    assert len(options) >= 3
    assert page.get_by_role("option", name=re.compile("^ridge · Glossary The arithmetic intensity")).is_visible()
    last = len(options) - 1
    assert re.fullmatch(r"\d+ results", page.locator("#search-box-status").inner_text())

    def chosen() -> int:
        (index,) = [index for index, option in enumerate(options) if option.get_attribute("aria-selected") == "true"]
        assert field.get_attribute("aria-activedescendant") == options[index].get_attribute("id")
        return index

    assert chosen() == 0
    page.keyboard.press("ArrowDown")
    assert chosen() == 1
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowUp")
    assert chosen() == last
    page.keyboard.press("ArrowDown")
    with page.expect_navigation():
        page.keyboard.press("Enter")
    assert page.url.endswith("docs/glossary.html#term-ridge")


def test_escape_closes_the_box(page: Any) -> None:
    open_box(page)
    page.keyboard.type("softmax")
    page.keyboard.press("Escape")
    assert not page.locator("#pst-search-dialog").is_visible()


def test_what_nothing_has_is_said(page: Any) -> None:
    open_box(page)
    assert ask(page, "zzyzx <i>") == []
    said = page.locator("#search-box-status")
    assert said.inner_text().startswith("Nothing here for “zzyzx <i>”.")
    assert said.bounding_box()["height"] > 10


def test_without_the_list_enter_asks_the_search_page(page: Any) -> None:
    page.evaluate("() => { siteSearch.ready = new Promise(() => {}); }")  # so it never comes
    page.keyboard.press("Control+k")
    page.keyboard.type("softmax")
    with page.expect_navigation():
        page.keyboard.press("Enter")
    assert page.url.endswith("search.html?q=softmax")


def test_the_open_box_has_no_barriers_and_fits_a_phone(page: Any) -> None:
    open_box(page)
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        for width in (1280, 390):
            page.set_viewport_size({"width": width, "height": 700})
            for query in ("bandwidth", "zzyzx"):
                ask(page, query)
                assert not (found := barriers.found(page)), f"{query}, {scheme}, {width} px: {found}"
                shown = "#search-box-results" if query == "bandwidth" else "#search-box-status"
                box = page.locator(shown).bounding_box()
                assert box["x"] >= 0
                assert box["x"] + box["width"] <= width
                assert box["y"] + box["height"] <= 700


def test_the_library_is_as_it_was_published() -> None:
    """MiniSearch 7.2.0, `dist/umd/index.js` of the package on npm."""
    script = (STATIC / "minisearch" / "minisearch.js").read_bytes()
    assert hashlib.sha256(script).hexdigest() == "03c27931eb603af1d3358579e9885eafdb6a2f5fa9929557b3e77d7e99d06d03"
    assert "Permission is hereby granted" in (STATIC / "minisearch" / "LICENSE.txt").read_text(encoding="utf-8")
