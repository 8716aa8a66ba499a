"""The built site in a browser: both themes, wide and narrow, with every other host blocked."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

SITE = Path(__file__).parents[2] / "_build" / "html"
PAGES = [
    name for path in sorted(SITE.glob("**/*.html")) if not (name := path.relative_to(SITE).as_posix()).startswith("_")
]
TUTORIALS = [name for name in PAGES if name.startswith("tutorials/")]
NOT_FOUND = "404.html"
FIRST_VIEW = 0.85e6
"""Bytes that the first view of a page may transfer"""

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(not PAGES, reason="the site is not built; run `make site`, or `make test`, which does"),
]


class Quiet(SimpleHTTPRequestHandler):
    """Serves files, sends the site's own page where there is none, and writes no log."""

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


class View:
    """One page opened, with what it asked for and complained about."""

    def __init__(self, browser: Any, address: str, name: str, *, width: int = 1280, **options: Any) -> None:
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
        self.page.goto(f"{address}/{name}", wait_until="networkidle")

    def transferred(self) -> int:
        """Return the bytes of all answers, asked for only now: an answer's end may come after its event."""
        return sum(len(response.body()) for response in self.responses if response.ok)

    def __enter__(self) -> View:
        return self

    def __exit__(self, *_: object) -> None:
        self.context.close()


SCROLLED_BY_KEYBOARD = """() => [...document.querySelectorAll("pre, div.math, .pst-scrollable-table-container")]
    .every(element => element.scrollWidth <= element.clientWidth || element.tabIndex === 0)"""
"""What is wider than its place takes the focus, so that the arrow keys move it; the theme sees to it after a resize"""


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


@pytest.mark.parametrize("name", PAGES)
def test_page(browser: Any, address: str, name: str) -> None:
    """In both schemes and at both widths: nothing from elsewhere, no complaint, no barrier, no sideways scrolling.

    What takes the focus shows it.
    """
    from axe_playwright_python.sync_playwright import Axe

    with View(browser, address, name, color_scheme="light") as view:
        transferred = view.transferred()
        assert transferred <= FIRST_VIEW, f"{transferred / 1e6:.2f} MB"
        for scheme in ("light", "dark"):
            view.page.emulate_media(color_scheme=scheme)
            if name == NOT_FOUND:  # it has no script that follows the change
                view.page.reload()
            view.page.wait_for_function("scheme => document.documentElement.dataset.theme === scheme", arg=scheme)
            for width in (1280, 390):
                view.page.set_viewport_size({"width": width, "height": 900})
                view.page.wait_for_function(SCROLLED_BY_KEYBOARD)
                sideways = view.page.evaluate("document.documentElement.scrollWidth")
                assert sideways <= width, f"{scheme}, {width} px: the page is {sideways} px wide"
                for figure in view.page.locator("figure.gg-figure").all():
                    assert figure.locator("img.only-light").is_visible() == (scheme == "light")
                    assert figure.locator("img.only-dark").is_visible() == (scheme == "dark")
                    assert figure.locator("figcaption .caption-text").is_visible()
                    for stamp in figure.locator("figcaption .gg-stamp").all():  # none where nothing was measured
                        assert stamp.is_visible()
                assert view.foreign == []
                assert view.complaints == []
                found = Axe().run(view.page, options={"resultTypes": ["violations"]})
                assert found.violations_count == 0, f"{scheme}, {width} px: {found.generate_report()}"
                view.complaints.clear()  # it makes requests of its own
                view.page.keyboard.press("Tab")  # from here on, the browser shows rings as for the keyboard
                count, without = view.page.evaluate(FOCUS_RINGS)
                assert count >= 4
                assert without == [], f"{scheme}, {width} px: the focus is not seen"


@pytest.mark.parametrize("name", ["index.html", *TUTORIALS])
def test_a_page_opened_in_the_dark_loads_no_light_figure(browser: Any, address: str, name: str) -> None:
    with View(browser, address, name, color_scheme="dark") as view:
        assert view.page.evaluate("document.documentElement.dataset.theme") == "dark"
        view.page.evaluate("scrollTo(0, document.body.scrollHeight)")
        loaded = view.page.evaluate(
            "[...document.images].filter(i => i.complete && i.naturalWidth).map(i => i.className)"
        )
        assert not [classes for classes in loaded if "only-light" in classes]


def test_a_missing_focus_ring_would_be_found(browser: Any, address: str) -> None:
    with View(browser, address, "index.html") as view:
        view.page.keyboard.press("Tab")
        view.page.add_style_tag(content=":not(#a#b) { outline: none !important; box-shadow: none !important }")
        _, without = view.page.evaluate(FOCUS_RINGS)
        assert len(without) >= 4


def test_the_keyboard_reaches_the_text_and_goes_on(browser: Any, address: str) -> None:
    with View(browser, address, "index.html") as view:
        reached = []
        for _ in range(40):
            view.page.keyboard.press("Tab")
            reached.append(view.page.evaluate("document.activeElement.innerText || document.activeElement.tagName"))
        assert reached[0] == "Skip to main content"
        assert "Measure a GPU without fooling yourself" in reached


TEXT = """() => {
    const article = document.querySelector("article, main").cloneNode(true);
    article.querySelectorAll("button, .pst-js-only, script").forEach(element => element.remove());
    return article.textContent.replace(/\\s+/g, " ").trim();
}"""


FOLDS = 30
"""How many folds of a page are opened; the page of claims has hundreds that are alike"""


@pytest.mark.parametrize("name", [name for name in PAGES if name != "search.html"])
def test_page_without_scripts(browser: Any, address: str, name: str) -> None:
    """All text, every figure and formula, and folds that open."""
    with View(browser, address, name) as view:
        with_scripts = view.page.evaluate(TEXT)
    with View(browser, address, name, java_script_enabled=False) as view:
        assert view.page.evaluate(TEXT) == with_scripts
        assert view.complaints == []
        for figure in view.page.locator("figure.gg-figure").all():
            assert figure.locator("img.only-light").is_visible()
            assert not figure.locator("img.only-dark").is_visible()
            assert figure.locator("figcaption").is_visible()
        for formula in view.page.locator("math").all():
            box = formula.bounding_box()
            assert box
            assert box["width"] > 0
        for title in view.page.locator("article summary").all()[:FOLDS]:
            if title.is_visible():
                before = title.evaluate("title => title.parentElement.open")
                title.click()
                assert title.evaluate("title => title.parentElement.open") != before


LUMINANCE = """() => [...document.querySelectorAll("article :is(p, code, h2, .highlight span)")].map(element => {
    const [red, green, blue] = getComputedStyle(element).color.match(/[\\d.]+/g).map(Number);
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
})"""


@pytest.mark.parametrize("name", ["index.html", *TUTORIALS, "docs/hardware.html"])
def test_page_in_print(browser: Any, address: str, name: str) -> None:
    """Opened in the dark, a page prints dark text and light figures, unfolds the claims and has no navigation."""
    with View(browser, address, name, color_scheme="dark") as view:
        view.page.emulate_media(media="print", color_scheme="dark")
        view.page.set_viewport_size({"width": 794, "height": 1123})  # A4
        for figure in view.page.locator("figure.gg-figure").all():
            assert figure.locator("img.only-light").is_visible()
            assert not figure.locator("img.only-dark").is_visible()
        for screen_only in ("header.bd-header", ".bd-sidebar-primary", ".bd-sidebar-secondary", ".prev-next-footer"):
            for part in view.page.locator(screen_only).all():
                assert not part.is_visible()
        assert max(view.page.evaluate(LUMINANCE)) < 90, "light text on white paper"
        for text in view.page.locator("details.gg-fold .gg-heard").all():
            assert text.is_visible()
        assert view.page.evaluate("document.documentElement.scrollWidth") <= 794
        assert view.page.pdf().startswith(b"%PDF")


@pytest.mark.parametrize("name", PAGES)
def test_page_from_a_file(browser: Any, name: str) -> None:
    """Without a server: style sheets, scripts and images load, and nothing complains."""
    root = SITE.as_uri()
    with View(browser, root, name) as view:
        assert view.foreign == []
        assert view.complaints == []
        sheets = (
            "[...document.querySelectorAll('link[rel=stylesheet]')].filter(link => !link.sheet).map(link => link.href)"
        )
        assert view.page.evaluate(sheets) == []
        view.page.evaluate("document.querySelectorAll('img').forEach(image => image.scrollIntoView())")
        empty = "[...document.images].filter(i => i.checkVisibility() && i.complete && !i.naturalWidth).map(i => i.src)"
        assert view.page.evaluate(empty) == []


def test_an_address_that_leads_nowhere(browser: Any, address: str) -> None:
    with View(browser, address, "tutorials/a/b/no-such-page.html") as view:
        assert view.page.locator("h1").inner_text() == "There is no page at this address"
        assert view.foreign == []
        assert not [text for text in view.complaints if "no-such-page" not in text and "404" not in text]
        view.page.get_by_role("link", name="Tutorials").click()
        assert view.page.url == f"{address}/tutorials/index.html"


def test_search_finds_a_page(browser: Any, address: str) -> None:
    with View(browser, address, "search.html?q=bandwidth") as view:
        view.page.wait_for_selector("#search-results li a")
        assert view.foreign == []
        assert view.complaints == []


@pytest.mark.parametrize("scripts", [True, False])
def test_the_address_of_a_claim_opens_its_topic(browser: Any, address: str, scripts: bool) -> None:
    with View(browser, address, "docs/claims.html", width=390, java_script_enabled=scripts) as view:
        assert not view.page.locator(".gg-claim").first.is_visible()
        assert view.page.locator("section[id^=topic-]").count() >= 20
    name = "docs/claims.html#claim-bf16-digits"
    with View(browser, address, name, width=390, java_script_enabled=scripts) as view:
        assert view.page.locator("#claim-bf16-digits .gg-heard").is_visible()
        assert view.page.locator("#claim-bf16-digits .gg-how p").is_hidden()
        assert not view.page.locator("#claim-lora-speed-2-3x").is_visible()


def test_the_search_dialog_opens_with_the_keyboard(browser: Any, address: str) -> None:
    with View(browser, address, "index.html") as view:
        view.page.keyboard.press("Control+k")
        assert view.page.locator("#pst-search-dialog input[type=search]").is_visible()
