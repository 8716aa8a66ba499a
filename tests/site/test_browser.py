"""The built site in a browser: both themes, wide and narrow, with every other host blocked.

A page is opened once, bright, from a server, and looked at in both widths, at 200 % and on the smallest phone;
barriers and focus, which take long, are looked for in the wide page. A page of each template is opened in all modes:
dark from a file, on paper, without scripts. Pages of the API reference and of source are otherwise opened in
`make test-thoroughly` only, which opens every page in all modes.
"""

from __future__ import annotations

import functools
import gzip
import io
import re
import threading
import time
import unicodedata
from collections.abc import Iterable, Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import barriers
import pytest
from pypdf import PdfReader
from report import count

from gpuguide.site.search_and_links import navigation

SITE = Path(__file__).parents[2] / "_build" / "html"
PAGES = [
    name for path in sorted(SITE.glob("**/*.html")) if not (name := path.relative_to(SITE).as_posix()).startswith("_")
]
if PAGES:
    PAGES += ["_modules/index.html", "_modules/gpuguide/costs/roofline.html"]  # the pages of source are made alike
TUTORIALS = [name for name in PAGES if name.startswith("tutorials/")]
SAMPLES = (
    "docs/api/costs.html",
    "docs/how-we-measure.html",
    "docs/measurements.html",
    "docs/will-it-fit.html",
    "_modules/gpuguide/costs/roofline.html",
)
"""One page of each kind of which there are several: API reference, prose, records, calculators, source"""
FROM_SOURCE = re.compile(r"docs/api/(?!index).*|_modules/.*")
"""The pages that are made of the library's source, by templates"""
OF_A_KIND = re.compile(
    rf"{FROM_SOURCE.pattern}|docs/(changes|environments|measure-your-gpu|model-card|record-format|run-the-tutorials)\.html|"
    r"docs/(how-long-to-move|how-often-to-save|what-is-the-limit)\.html"
)
"""All pages that are made as one of the samples, which alone are searched for barriers"""
EXAMPLE = "tutorials/00-measure-a-gpu.html"
IN_ALL_MODES = (*SAMPLES, EXAMPLE, "index.html", "docs/claims.html", "docs/hardware.html")
"""Pages that are looked at in whole in both schemes, at both widths, without scripts and on paper"""
PRINTED = ["index.html", *TUTORIALS, "docs/hardware.html", "docs/claims.html"]
NOT_FOUND = "404.html"
WIDE, NARROW, SMALLEST, A4 = 1280, 390, 320, 794
FIRST_VIEW = 0.225e6
"""Bytes that the first view of a page may transfer, compressed as web servers send them"""
REQUESTS = 30
"""Files that it may ask for"""
SHIFT = 0.05
"""How far it may move while it loads, as browsers measure it (cumulative layout shift)"""

pytestmark = [
    pytest.mark.apart,
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(not PAGES, reason="the site is not built; run `make site`, or `make test`, which does"),
]


def is_unlike_others(name: str) -> bool:
    """Return whether no other page is made in the same way, or this one is the sample of its kind."""
    return name in SAMPLES or not OF_A_KIND.fullmatch(name)


def unless_thorough(names: Iterable[str]) -> list[Any]:
    """Return all pages as parameters, these for every run of the tests and the others for a thorough one."""
    usual = set(names)
    return [name if name in usual else pytest.param(name, marks=pytest.mark.thorough) for name in PAGES]


@pytest.fixture
def in_all_modes(name: str, request: pytest.FixtureRequest) -> bool:
    """Return whether a page is looked at in all modes now."""
    return name in IN_ALL_MODES or bool(request.config.getoption("thorough"))


class Quiet(SimpleHTTPRequestHandler):
    """Serves files, sends the site's own page where there is none, and writes no log.

    Of a page asked for with ``?pause=SECONDS``, what follows its first paragraph is sent that much later.
    """

    def do_GET(self) -> None:
        """Send the file that is asked for."""
        name, _, pause = self.path.partition("?pause=")
        if not pause:
            super().do_GET()
            return
        page = (SITE / name.lstrip("/")).read_bytes()
        middle = page.index(b"</p>", page.index(b"</h1>"))
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page[:middle])
        time.sleep(float(pause))
        self.wfile.write(page[middle:])

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Send what a web server sends for an address that leads nowhere."""
        body = (SITE / NOT_FOUND).read_bytes()
        self.send_response(code, message)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(SITE)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


SHIFTS = """(() => {
    window.shifted = 0;
    new PerformanceObserver(list => list.getEntries().forEach(entry => { window.shifted += entry.value; }))
        .observe({type: "layout-shift", buffered: true});
})()"""


@functools.cache
def compressed(body: bytes) -> int:
    """Return how many bytes a web server sends."""
    return min(len(body), len(gzip.compress(body)))


class View:
    """One page opened, with what it asked for and complained about."""

    def __init__(
        self, browser: Any, address: str, name: str, *, width: int = 1280, until: str = "load", **options: Any
    ) -> None:
        count("views of a page", name)
        self.context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        self.page = self.context.new_page()
        self.foreign: list[str] = []
        self.complaints: list[str] = []
        self.responses: list[Any] = []

        def decide(route: Any) -> None:
            if route.request.url.startswith((address, "data:")):
                route.continue_()
            else:
                self.foreign.append(route.request.url)
                route.abort()

        def note(response: Any) -> None:
            self.responses.append(response)
            if not response.ok:
                self.complaints.append(f"{response.status} {response.url}")

        self.page.route("**/*", decide)
        self.page.on("console", lambda message: self.complaints.append(message.text) if message.type == "error" else 0)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("response", note)
        self.page.add_init_script(SHIFTS)
        self.page.goto(f"{address}/{name}", wait_until=until)

    def transferred(self) -> int:
        """Return the bytes of all answers, asked for only now: an answer's end may come after its event."""
        return sum(compressed(response.body()) for response in self.responses if response.ok)

    def __enter__(self) -> View:
        return self

    def __exit__(self, *_: object) -> None:
        self.context.close()


# --- what is asked of a page -------------------------------------------------------------------------------

SEEN = """const seen = element => {
    const box = element.getBoundingClientRect();
    return element.checkVisibility({visibilityProperty: true}) && box.width > 0 && box.height > 0;
};"""
FIGURES = f"""() => {{
    {SEEN}
    const all = (figure, selector) => [...figure.querySelectorAll(selector)].map(seen);
    return [...document.querySelectorAll("figure.gg-figure")].map(figure => {{
        const closed = [];
        for (let fold = figure.closest("details"); fold; fold = fold.parentElement.closest("details")) {{
            if (!fold.open) closed.push(fold);
        }}
        closed.forEach(fold => {{ fold.open = true; }});
        const found = {{
            light: all(figure, "img.only-light:not(.gg-others)"), dark: all(figure, "img.only-dark:not(.gg-others)"),
            others: all(figure, ".gg-others"), tried: all(figure, ".gg-try").includes(true),
            caption: all(figure, "figcaption .caption-text"),
            stamps: all(figure, "figcaption .gg-stamp:not(.gg-others)") }};
        closed.forEach(fold => {{ fold.open = false; }});
        return found;
    }});
}}"""
"""Of each figure, which of its parts are seen, if need be with the folds around it open"""


def figures_are_seen(view: View, scheme: str) -> None:
    """One image of each figure or what one can try in its place, its caption, and its stamps, if it was measured.

    Nothing of another GPU, which nobody has asked for here.
    """
    for figure in view.page.evaluate(FIGURES):
        assert figure["light"] == [scheme == "light" and not figure["tried"]]
        assert figure["dark"] == [scheme == "dark" and not figure["tried"]]
        assert figure["caption"] == [True]
        assert all(figure["stamps"])
        assert not any(figure["others"])


FOCUS_RINGS = """() => {
    const still = document.createElement("style");
    still.textContent = "*, *::before, *::after { transition: none !important; animation: none !important }";
    document.head.append(still);
    const ring = element => [element, ...element.querySelectorAll("span")].map(part => {
        const style = getComputedStyle(part);
        const outlined = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2;
        return [outlined && style.outlineColor, style.boxShadow].join();
    }).join(";");
    const seen = [], without = [];
    for (const element of document.querySelectorAll("a[href], button, input, select, textarea, summary, [tabindex]")) {
        if (element.tabIndex < 0 || !element.checkVisibility()) continue;
        document.activeElement.blur();
        const before = ring(element);
        element.focus();
        if (document.activeElement !== element) continue;
        seen.push(element);
        if (ring(element) === before) without.push(element.outerHTML.slice(0, 200));
    }
    return [seen.length, without];
}"""


def fits(view: View, width: int) -> None:
    """Nothing scrolls sideways, and no name or parameter of the reference is wider than its page."""
    sideways = view.page.evaluate("document.documentElement.scrollWidth")
    assert sideways <= width, f"{width} px: the page is {sideways} px wide"
    assert view.page.evaluate(CUT_OFF) == []


CUT_OFF = """() => {
    const article = document.querySelector("article.bd-article")?.getBoundingClientRect();
    return [...document.querySelectorAll(".sig, .sig *, dl.field-list *")]
        .filter(element => element.getBoundingClientRect().right > article.right + 1 && !element.closest("pre"))
        .map(element => element.textContent.slice(0, 80));
}"""


def looked_at(view: View, scheme: str, width: int, *, closely: bool) -> None:
    """Look at a page in one scheme and at one width: no sideways scrolling, figures; closely, barriers and focus."""
    where = f"{scheme}, {width} px"
    barriers.resize(view.page, width)
    assert view.page.evaluate("document.documentElement.dataset.theme") == scheme
    fits(view, width)
    figures_are_seen(view, scheme)
    assert view.foreign == []
    assert view.complaints == []
    if not closely:
        return
    assert not (found := barriers.found(view.page)), f"{where}: {found}"
    view.page.keyboard.press("Tab")  # from here on, the browser shows rings as for the keyboard
    reached, without = view.page.evaluate(FOCUS_RINGS)
    assert reached >= 4
    assert without == [], f"{where}: the focus is not seen"


TEXTS = """async () => {
    const text = page => {
        const article = page.querySelector("article, main").cloneNode(true);
        article.querySelectorAll("button, .pst-js-only, script").forEach(element => element.remove());
        return article.textContent.replace(/\\s+/g, " ").trim();
    };
    const sent = await (await fetch(location)).text();
    return [text(document), text(new DOMParser().parseFromString(sent, "text/html"))];
}"""
"""The text of the page as scripts have left it, and as it was sent"""
MOVING = "document.querySelector('figure.gg-figure, math, article summary') !== null"
"""Whether there is anything that could need a script to be seen: a figure, a formula, a fold"""
WITHOUT_SCRIPTS = f"""() => {{
    {SEEN}
    const flat = formula => formula.getBoundingClientRect().width === 0;
    const formulas = [...document.querySelectorAll("math")].filter(flat).length;
    const stuck = [];
    const tried = {{}};
    for (const title of document.querySelectorAll("article summary")) {{
        const kind = title.parentElement.className;
        if (!seen(title) || (tried[kind] = (tried[kind] ?? 0) + 1) > 50) continue;
        title.scrollIntoView({{block: "center", behavior: "instant"}});
        const box = title.getBoundingClientRect();
        const there = document.elementFromPoint(box.x + Math.min(box.width, 20) / 2, box.y + box.height / 2);
        const before = title.parentElement.open;
        title.click();
        if (!title.contains(there) || title.parentElement.open === before) stuck.push(title.textContent);
    }}
    return {{ formulas, stuck }};
}}"""
"""How many formulas have no width; and folds that do not open or lie below something else, of fifty of a kind"""


OPENED = [name for name in PAGES if name in SAMPLES or not FROM_SOURCE.fullmatch(name)]


@pytest.mark.parametrize("name", unless_thorough(OPENED))
def test_page(browser: Any, address: str, name: str, in_all_modes: bool) -> None:
    """Opened from a server in the light scheme, with scripts and then without.

    Nothing from elsewhere, no complaint, no barrier, no sideways scrolling, little to transfer, nothing that jumps;
    what takes the focus shows it. Without scripts there are all text, every figure and formula, and folds that open.
    """
    with View(browser, address, name, until="networkidle", color_scheme="light") as view:
        transferred = view.transferred()
        assert transferred <= FIRST_VIEW, f"{transferred / 1e6:.2f} MB"
        assert len(view.responses) <= REQUESTS
        assert view.page.evaluate("shifted") < SHIFT
        with_scripts, without = view.page.evaluate(TEXTS)
        assert with_scripts == without or name == "search.html", "search says that it needs them"
        looked_at(view, "light", WIDE, closely=in_all_modes or is_unlike_others(name))
        looked_at(view, "light", NARROW, closely=in_all_modes)
        for width in (WIDE // 2, SMALLEST):
            view.page.set_viewport_size({"width": width, "height": 640})
            fits(view, width)
        moving = view.page.evaluate(MOVING)
    if moving and in_all_modes:
        with View(browser, address, name, java_script_enabled=False) as view:
            assert view.complaints == []
            figures_are_seen(view, "light")
            assert view.page.evaluate(WITHOUT_SCRIPTS) == {"formulas": 0, "stuck": []}


@pytest.mark.parametrize("name", ["index.html", EXAMPLE, "docs/claims.html"])
def test_the_first_view_on_a_phone_is_small_and_stands_still(browser: Any, address: str, name: str) -> None:
    """On a wide screen, each page is asked the same when it is opened for all else."""
    with View(browser, address, name, width=NARROW, until="networkidle") as view:
        assert view.transferred() <= FIRST_VIEW
        assert len(view.responses) <= REQUESTS
        assert view.page.evaluate("shifted") < SHIFT


SEEN_EARLY = """performance.getEntriesByName("first-contentful-paint")[0].startTime
    < performance.getEntriesByType("navigation")[0].responseEnd"""
"""Whether something was drawn before all of the page was there"""


@pytest.mark.parametrize("name", ["index.html", "tutorials/index.html", "docs/will-it-fit.html", "docs/claims.html"])
def test_what_is_drawn_first_stays_where_it_is(browser: Any, address: str, name: str) -> None:
    """On a slow line a page is drawn before its end has come, which must not move its beginning."""
    for pause in (1, 5, 25):
        with View(browser, address, f"{name}?pause={pause}", color_scheme="light") as view:
            if view.page.evaluate(SEEN_EARLY):
                assert view.page.evaluate("shifted") < SHIFT
                return
    pytest.fail("nothing was drawn before the page was complete")


SHEETS = "[...document.querySelectorAll('link[rel=stylesheet]')].filter(link => !link.sheet).map(link => link.href)"
"""Style sheets that were not loaded"""
EMPTY = "[...document.images].filter(i => i.checkVisibility() && i.complete && !i.naturalWidth).map(i => i.src)"
"""Images that are empty"""
LOADED = "[...document.images].filter(i => i.complete && i.naturalWidth).map(i => i.className)"


@pytest.mark.parametrize("name", unless_thorough(IN_ALL_MODES))
def test_page_from_a_file_in_the_dark(browser: Any, name: str, in_all_modes: bool) -> None:
    """Without a server, style sheets, scripts and images load, but no light figure; and then it prints."""
    with View(browser, SITE.as_uri(), name, width=NARROW, color_scheme="dark") as view:
        assert view.page.evaluate(SHEETS) == []
        view.page.evaluate("document.querySelectorAll('img').forEach(image => image.scrollIntoView())")
        assert view.page.evaluate(EMPTY) == []
        looked_at(view, "dark", NARROW, closely=True)
        looked_at(view, "dark", WIDE, closely=in_all_modes)
        assert not [classes for classes in view.page.evaluate(LOADED) if "only-light" in classes]
        if name in PRINTED:
            printed(view)
            if in_all_modes:
                in_whole(view)


LUMINANCE = """() => [...document.querySelectorAll("article :is(p, code, h2, .highlight span)")].map(element => {
    const [red, green, blue] = getComputedStyle(element).color.match(/[\\d.]+/g).map(Number);
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
})"""
SCREEN_ONLY = "header.bd-header, .bd-sidebar-primary, .bd-sidebar-secondary, .prev-next-footer"


def printed(view: View) -> None:
    """Look at a page that was opened in the dark on paper: dark text, light figures, open claims, no navigation."""
    view.page.emulate_media(media="print", color_scheme="dark")
    view.page.set_viewport_size({"width": A4, "height": 1123})
    figures_are_seen(view, "light")
    seen = f"selector => {{ {SEEN} return [...document.querySelectorAll(selector)].map(seen); }}"
    assert not any(view.page.evaluate(seen, SCREEN_ONLY))
    assert max(view.page.evaluate(LUMINANCE)) < 90, "light text on white paper"
    assert all(view.page.evaluate(seen, "details.gg-fold .gg-heard"))
    assert view.page.evaluate("document.documentElement.scrollWidth") <= A4
    assert view.page.evaluate(TORN) == []


LAST = """() => [...document.querySelectorAll("article :is(h1, h2, p, li, td, dd)")]
    .filter(element => element.checkVisibility() && element.innerText.trim()).at(-1).innerText"""
HEADINGS = """() => [...document.querySelectorAll("article :is(h1, h2, h3)")]
    .filter(heading => heading.checkVisibility()).map(heading => heading.innerText)"""
TORN = """() => [...document.querySelectorAll("article pre, article .highlight, article table")]
    .filter(element => element.checkVisibility() && /auto|scroll|hidden/.test(getComputedStyle(element).overflowY))
    .map(element => element.textContent.slice(0, 60))"""
"""What scrolls on paper: it is never broken over two sheets, and leaves an empty frame on the first or is cut off"""


def in_whole(view: View) -> None:
    """Print a page, and find all its headings and its last words on the sheets."""
    sheets = [close(sheet.extract_text()) for sheet in PdfReader(io.BytesIO(view.page.pdf(format="A4"))).pages]
    text = "".join(sheets)
    assert not [heading for heading in view.page.evaluate(HEADINGS) if close(heading) not in text]
    assert close(view.page.evaluate(LAST))[-40:] in "".join(sheets[-2:]), "the end of the page is not printed"


def close(text: str) -> str:
    """Return a text without spaces, hyphens and the marks of links, which a PDF has in other places, and ligatures."""
    return re.sub(r"[\s#\xad-]+", "", unicodedata.normalize("NFKC", text))


# --- that what is wrong would be found -----------------------------------------------------------------------


def test_a_missing_focus_ring_would_be_found(browser: Any, address: str) -> None:
    with View(browser, address, "index.html") as view:
        view.page.keyboard.press("Tab")
        view.page.add_style_tag(content=":not(#a#b) { outline: none !important; box-shadow: none !important }")
        _, without = view.page.evaluate(FOCUS_RINGS)
        assert len(without) >= 4


WEAK = {
    "article p:last-of-type": "color: #8a8a8a",
    ".highlight pre > span:nth-of-type(7)": "color: #8a8a8a",
    "article a": "color: #333333; text-decoration: none",
    "article li:nth-of-type(2)": "background: #777777",
    "article h2": "opacity: 0.3",
}
"""Styles that make something on the page hard to read"""


def test_weak_colours_would_be_found(browser: Any, address: str) -> None:
    with View(browser, address, "docs/measure-your-gpu.html") as view:
        assert barriers.found(view.page) == ""
        for where, style in WEAK.items():
            style = style.replace(";", " !important;") + " !important"
            sheet = view.page.add_style_tag(content=f"{where} {{ {style} }}")
            found = barriers.found(view.page)
            assert "color-contrast" in found or "link-in-text-block" in found, where
            assert where != "article h2" or barriers.found(view.page) == found, "it is measured again until it passes"
            sheet.evaluate("style => style.remove()")
        assert barriers.found(view.page) == ""


@pytest.mark.parametrize("scheme", [pytest.param("light", marks=pytest.mark.thorough), "dark"])
@pytest.mark.parametrize("name", unless_thorough([EXAMPLE]))
def test_the_same_is_found_if_every_text_is_measured(browser: Any, address: str, name: str, scheme: str) -> None:
    with View(browser, address, name, color_scheme=scheme) as view:
        assert barriers.found_everywhere(view.page) == ""


def test_the_keyboard_reaches_the_text_and_goes_on(browser: Any, address: str) -> None:
    with View(browser, address, "index.html") as view:
        reached = []
        for _ in range(40):
            view.page.keyboard.press("Tab")
            reached.append(view.page.evaluate("document.activeElement.innerText || document.activeElement.tagName"))
        assert reached[0] == "Skip to main content"
        assert "Time GPU code correctly: synchronise, warm up, check the roofline" in reached


# --- single pages --------------------------------------------------------------------------------------------


def test_an_address_that_leads_nowhere(browser: Any, address: str) -> None:
    with View(browser, address, "tutorials/a/b/no-such-page.html") as view:
        assert view.page.locator("h1").inner_text() == "There is no page at this address"
        header = view.page.get_by_role("banner")
        assert header.get_by_role("link").all_inner_texts() == ["gpuguide", *navigation.SECTIONS]
        assert not barriers.found(view.page)
        assert view.foreign == []
        assert not [text for text in view.complaints if "no-such-page" not in text and "404" not in text]
        view.page.get_by_role("link", name="Tutorials").click()
        assert view.page.url == f"{address}/tutorials/index.html"


ANCHORS = ["docs/glossary.html#term-roofline", "docs/hardware.html#gpu-rtx-4090", f"{EXAMPLE}#claims-checked"]


@pytest.mark.parametrize("width", [WIDE, NARROW])
@pytest.mark.parametrize("name", ANCHORS)
def test_what_an_address_points_at_is_not_under_the_header(browser: Any, address: str, name: str, width: int) -> None:
    with View(browser, address, name, width=width) as view:
        top = """name => document.querySelector(`[id^="${name}"]`).getBoundingClientRect().top"""
        bottom = """() => document.querySelector(".bd-header").getBoundingClientRect().bottom"""
        view.page.wait_for_function("scrollY > 0")
        assert 0 < view.page.evaluate(top, name.partition("#")[2]) - view.page.evaluate(bottom) < 60


def test_search_finds_a_page(browser: Any, address: str) -> None:
    with View(browser, address, "search.html?q=bandwidth") as view:
        view.page.wait_for_selector("#search-results li a")
        assert view.foreign == []
        assert view.complaints == []


@pytest.mark.parametrize("scripts", [True, False])
def test_the_address_of_a_claim_opens_it(browser: Any, address: str, scripts: bool) -> None:
    with View(browser, address, "docs/claims.html", width=390, java_script_enabled=scripts) as view:
        assert view.page.locator(".gg-claim summary").first.is_visible()
        assert not view.page.locator(".gg-evidence").first.is_visible()
        view.page.locator("#gg-filter-outdated").check()
        assert not view.page.locator(".gg-is-true:visible, .gg-is-false:visible").count()
        assert view.page.locator(".gg-is-outdated:visible").count() > 1
    name = "docs/claims.html#claim-bf16-digits"
    with View(browser, address, name, width=390, java_script_enabled=scripts) as view:
        assert view.page.locator("#claim-bf16-digits .gg-how").is_visible()
        assert view.page.locator("details.gg-claim[open]").count() == 1
        if scripts:
            view.page.locator("#gg-filter-outdated").check()
            view.page.evaluate("location.hash = '#claim-lora-speed-2-3x'")
            view.page.locator("#claim-lora-speed-2-3x").wait_for()


def test_the_search_dialog_opens_with_the_keyboard(browser: Any, address: str) -> None:
    with View(browser, address, "index.html") as view:
        view.page.keyboard.press("Control+k")
        assert view.page.locator("#pst-search-dialog input[type=search]").is_visible()
