"""Search in a browser: what it finds, by the keyboard, from a file, in folds, for odd questions, without its files."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import barriers
import pytest

from gpuguide.site.pages import page_source
from gpuguide.site.search_and_links import search_entries
from gpuguide.site.search_and_links.search_entries import plain_name
from gpuguide.site.theme.assets import THEME

SITE = Path(__file__).parents[3] / "_build" / "html"
STATIC = THEME / "static"
QUESTIONS: dict[str, dict[str, Any]] = tomllib.loads(
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
def tab(browser: Any) -> Iterator[Any]:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    yield context.new_page()
    context.close()


@pytest.fixture
def page(tab: Any) -> Any:
    """A page two folders deep, opened anew from its file."""
    tab.set_viewport_size({"width": 1280, "height": 900})
    tab.emulate_media(color_scheme="light")
    tab.goto((SITE / "docs" / "api" / "costs.html").as_uri())
    return tab


@pytest.fixture(scope="module")
def box(browser: Any) -> Iterator[Any]:
    """The same page with its box open, for all tests that only ask."""
    context = browser.new_context()
    page = context.new_page()
    page.goto((SITE / "docs" / "api" / "costs.html").as_uri())
    open_box(page)
    yield page
    context.close()


def open_box(page: Any) -> None:
    page.keyboard.press("Control+k")
    page.wait_for_function("searchBox.ready")


def ask(page: Any, query: str) -> list[str]:
    """Type a query into the open box and return the addresses of what it lists, from the site's root."""
    page.locator("#pst-search-dialog input").fill(query)
    addresses = page.locator("#search-box-results [role=option]").evaluate_all("all => all.map(each => each.href)")
    return [address.removeprefix(f"{SITE.as_uri()}/") for address in addresses]


ASK = """queries => queries.map(query => {
    const field = document.querySelector("#pst-search-dialog input");
    field.value = query;
    field.dispatchEvent(new Event("input"));
    return [...document.querySelectorAll("#search-box-results [role=option]")].map(each => each.href);
})"""


def ask_all(box: Any, queries: Iterable[str]) -> dict[str, list[str]]:
    """Return what the open box lists for each query, without a key press each."""
    queries = list(queries)
    listed = box.evaluate(ASK, queries)
    found = [[address.removeprefix(f"{SITE.as_uri()}/") for address in addresses] for addresses in listed]
    return dict(zip(queries, found, strict=True))


def answers(found: str, wanted: str) -> bool:
    """Return whether an address is the one that is wanted, the number of its page aside."""
    place, _, anchor = re.sub(r"\?find=[^#]*", "", found).partition("#")
    plain = without_number(place)
    return wanted == (f"{plain}#{anchor}" if "#" in wanted else plain)


def without_number(address: str) -> str:
    return re.sub(r"/\d+-", "/", address)


@pytest.mark.parametrize(("list_of", "first"), [("three", 3), ("two", 2), ("names", 3)])
def test_what_is_sought_comes_first(box: Any, list_of: str, first: int) -> None:
    questions = QUESTIONS[list_of]
    missed = {
        query: found[:first]
        for query, found in ask_all(box, questions).items()
        if not any(answers(address, questions[query]) for address in found[:first])
    }
    assert missed == {}


def test_practitioners_are_answered_first(box: Any) -> None:
    """Of their sixty questions, fifty at once and fifty-eight among the first three; some have no answer here."""
    questions = QUESTIONS["practitioners"]
    places = {query: place_of(found, questions[query]) for query, found in ask_all(box, questions).items()}
    assert len(places) == 60
    later = {query: place for query, place in places.items() if place != 1}
    assert sum(place == 1 for place in places.values()) >= 50, later
    assert sum(place <= 3 for place in places.values()) >= 58, later


def test_pages_are_found_by_the_queries_that_they_want_to_answer(box: Any) -> None:
    """Each tutorial names some: nine of ten lead to it among the first three, and four of five at once."""
    wanted = {
        query: [f"tutorials/{plain_name(path.stem)}.html"]
        for path in sorted((SITE.parents[1] / "tutorials").glob("[0-9]*.md"))
        for query in page_source.read(path.read_text(encoding="utf-8")).queries
    }
    places = {query: place_of(found, wanted[query]) for query, found in ask_all(box, wanted).items()}
    assert len(places) > 60
    later = {query: place for query, place in places.items() if place != 1}
    assert sum(place == 1 for place in places.values()) >= 0.8 * len(places), later
    assert sum(place <= 3 for place in places.values()) >= 0.9 * len(places), later


def place_of(found: list[str], wanted: list[str]) -> int:
    """Return at which place the first address that is wanted stands; an empty list is right where none is."""
    if not wanted:
        return 99 if found else 1
    return next((at for at, each in enumerate(found, 1) if any(answers(each, place) for place in wanted)), 99)


def test_what_says_little_stands_last(box: Any) -> None:
    last = box.evaluate("siteSearch.entries.filter(({ last }) => last).map(({ address }) => address)")
    assert {"docs/status.html", "docs/changes.html"} <= {address.partition("#")[0] for address in last}
    for query, listed in ask_all(box, QUESTIONS["practitioners"]).items():
        found = [re.sub(r"\?find=[^#]*", "", address) for address in listed]
        assert not set(found[:3]) & set(last), query
        assert len(found) == len(set(found)), f"{query}: an address stands twice"
    assert ask(box, "status")[0] == "docs/status.html", "who asks for it by name finds it first"
    assert ask(box, "changes")[0] == "docs/changes.html"
    assert ask(box, "exercises")[0].endswith("#exercises")


def test_sizes_and_cards_lead_to_the_calculator(box: Any) -> None:
    queries = ("7b", "24gb", "1.5b", "8x7b", "13b 16gb", "70b on 2 h100", "12gb rtx 3090", "train 3b on a 4090")
    for query, found in ask_all(box, queries).items():
        assert "docs/will-it-fit.html" in found[:3], query


def test_for_gpus_of_others_it_says_that_there_are_none(box: Any, page: Any) -> None:
    makers = {"mi300x": "AMD", "MI300X vs H100": "AMD", "rx 7900 xtx": "AMD", "Apple M3": "Apple", "gaudi 3": "Intel"}
    for query, maker in makers.items():
        assert bool(ask(box, query)) == ("H100" in query), "what else was asked for is answered"
        status = box.locator("#search-box-status")
        assert "NVIDIA GPUs only" in status.inner_text()
        assert maker in status.inner_text()
        assert status.bounding_box()["height"] > 10
        assert status.get_by_role("link", name="Hardware").get_attribute("href").endswith("docs/hardware.html")
    page.goto(f"{(SITE / 'search.html').as_uri()}?q=MI300X+vs+H100")
    page.wait_for_function("/NVIDIA GPUs only/.test(document.getElementById('search-status').textContent)")


def test_near_words_are_offered_and_ask_instead(page: Any) -> None:
    open_box(page)
    assert ask(page, "samplng") == []
    page.locator("#search-box-status").get_by_role("link", name="sampling").click()
    assert page.locator("#pst-search-dialog input").input_value() == "sampling"
    assert page.get_by_role("option").count() >= 3
    assert page.evaluate("document.activeElement.type") == "search"
    page.goto(f"{(SITE / 'search.html').as_uri()}?q=samplng")
    with page.expect_navigation():
        page.locator("#search-status").get_by_role("link", name="sampling").click()
    assert page.url.endswith("search.html?q=sampling")


def test_it_says_when_nothing_has_all_of_the_words(box: Any) -> None:
    assert ask(box, "softmax zzyzx")
    assert re.match(r"\d+ results?, none with all of these words", box.locator("#search-box-status").inner_text())


@pytest.mark.parametrize(
    ("one", "two", "far"),
    [("memory", "memory", 0), ("memry", "memory", 1), ("meomry", "memory", 1), ("abcd", "wxyz", None)],
)
def test_letters_are_counted(box: Any, one: str, two: str, far: int | None) -> None:
    counted = box.evaluate("([one, two]) => distance(one, two, 2)", [one, two])
    assert counted == (float("inf") if far is None else far)


def test_excerpts_are_sentences(box: Any) -> None:
    """No row of a table: of any five words in a row, at least two have letters."""
    for query in ("softmax", "eager compiled", "all weights training", "bandwidth", "gemma"):
        for shown in box.evaluate(
            "q => siteSearch.find(q).slice(0, 10).map((r) => siteSearch.excerpt(r).join(''))", query
        ):
            assert "needs JavaScript" not in shown
            parts = shown.split()
            rows = [parts[at : at + 5] for at in range(len(parts) - 4)]
            assert all(sum(any(map(str.isalpha, word)) for word in row) >= 2 for row in rows), shown


def test_every_entry_leads_to_a_place_that_there_is(box: Any) -> None:
    addresses = box.evaluate("siteSearch.entries.map(({ address }) => address)")
    pages = {address.partition("#")[0] for address in addresses}
    ids = {name: set(re.findall(r'\bid="([^"]+)"', (SITE / name).read_text(encoding="utf-8"))) for name in pages}
    wrong = [
        each for each in addresses if (anchor := each.partition("#")[2]) and anchor not in ids[each.partition("#")[0]]
    ]
    assert len(addresses) > 1000
    assert wrong == []


def test_its_list_stays_small() -> None:
    assert len(gzip.compress((SITE / "_static" / "search-entries.js").read_bytes())) < 300_000


def test_the_search_page_answers_as_the_box_does(page: Any) -> None:
    open_box(page)
    listed = [address for address in ask(page, "softmax overflow") if not address.startswith("search.html")]
    page.goto(f"{(SITE / 'search.html').as_uri()}?q=softmax+overflow")
    page.wait_for_selector("#search-results li")
    items = page.locator("#search-results a").evaluate_all("all => all.map(each => each.href)")
    assert [address.removeprefix(f"{SITE.as_uri()}/") for address in items[: len(listed)]] == listed
    assert page.locator("#search-status").inner_text() == f"{len(items)} results"
    assert page.get_by_role("searchbox", name="What are you looking for?").input_value() == "softmax overflow"


def test_every_page_and_every_figure_can_be_found(box: Any) -> None:
    """By its own words: a figure by its caption."""
    entries = box.evaluate("siteSearch.entries.map(({ kind, name, address }) => [kind, name, address])")
    figures = [(name, address) for kind, name, address in entries if kind == "Figure"]
    drawn = sum(
        len(re.findall(r'<figure[^>]* id="', path.read_text(encoding="utf-8")))
        for path in SITE.glob("**/*.html")
        if "_static" not in path.parts
    )
    assert len(figures) == drawn > 0
    listed = ask_all(box, {f"figure {name}" for name, _ in figures})
    for name, address in figures:
        assert any(answers(found, without_number(address)) for found in listed[f"figure {name}"][:3]), name
    calculators = {address for kind, _, address in entries if kind == "Calculator"}
    names = ("will-it-fit", "what-is-the-limit", "how-long-to-move", "how-often-to-save")
    assert calculators >= {f"docs/{name}.html" for name in names}


def test_nothing_is_listed_twice() -> None:
    lines = (SITE / "_static" / "search-entries.js").read_text(encoding="utf-8").splitlines()[1:-1]
    rows = [json.loads(line.removesuffix(",")) for line in lines]
    names = Counter((name, address) for _, name, address, *_ in rows)
    assert not [each for each, count in names.items() if count > 1]
    gpus = [(search_entries.KINDS[kind], address) for kind, _, address, *_ in rows if "hardware.html#gpu-" in address]
    assert {kind for kind, _ in gpus} == {"GPU"}
    assert len({address for _, address in gpus}) == len(gpus)


def test_words_are_given_for_pages_that_there_are() -> None:
    pages = {plain_name(path.with_suffix("").as_posix()) for path in SITE.glob("**/*.html")}
    assert set(search_entries.words()["asked"]) <= pages, "search_words.toml names a page that is gone"
    tutorials = {plain_name(path.stem) for path in (SITE / "tutorials").glob("[0-9]*.html")}
    assert tutorials <= set(search_entries.words()["asked"]), "search_words.toml says nothing about a tutorial"


@pytest.mark.parametrize("query", ODD.values(), ids=ODD)
def test_odd_questions_are_answered_calmly(box: Any, tab: Any, query: str) -> None:
    errors: list[str] = []
    for each in (box, tab):
        each.on("pageerror", lambda error: errors.append(str(error)))
    box.locator("#pst-search-dialog input").fill(query)
    status = box.locator("#search-box-status")
    if box.locator("#search-box-results [role=option]").count():
        assert re.match(r"\d+ results?\b", status.inner_text())
        assert box.evaluate("q => siteSearch.asked(q).length", query) <= 16
    elif query.strip():
        assert status.inner_text().startswith("Nothing here for “")
        assert len(status.inner_text()) < 150
        assert status.bounding_box()["width"] > 100
    dialog = box.locator("#pst-search-dialog").bounding_box()
    assert dialog["x"] >= 0
    assert dialog["x"] + dialog["width"] <= 1280
    assert box.locator("#pst-search-dialog img").count() == 0
    tab.goto(f"{(SITE / 'search.html').as_uri()}?q={box.evaluate('encodeURIComponent', query)}")
    tab.wait_for_function("!/Searching/.test(document.getElementById('search-status').textContent)")
    assert tab.locator("article img").count() == 0
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
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


def test_what_nothing_has_is_said(box: Any) -> None:
    assert ask(box, "zzyzx <i>") == []
    said = box.locator("#search-box-status")
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
