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
FIRST_VIEW = 0.85e6
"""Bytes that the first view of a page may transfer"""

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(not PAGES, reason="the site is not built; run `make site`, or `make test`, which does"),
]


class Quiet(SimpleHTTPRequestHandler):
    """Serves files and writes no log."""

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(SITE)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


@pytest.fixture(scope="module")
def browser(browser_path: Path) -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=str(browser_path), args=["--no-sandbox", "--disable-gpu"])
        yield started
        started.close()


class View:
    """One page opened in one theme at one width, with what it asked for and complained about."""

    def __init__(self, browser: Any, address: str, name: str, scheme: str, width: int, **options: Any) -> None:
        self.context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 900}, **options)
        self.page = self.context.new_page()
        self.foreign: list[str] = []
        self.complaints: list[str] = []
        self.transferred = 0

        def decide(route: Any) -> None:
            if route.request.url.startswith((address, "data:")):
                route.continue_()
            else:
                self.foreign.append(route.request.url)
                route.abort()

        def note(response: Any) -> None:
            if response.ok:
                self.transferred += len(response.body())
            else:
                self.complaints.append(f"{response.status} {response.url}")

        self.page.route("**/*", decide)
        self.page.on("console", lambda message: self.complaints.append(message.text) if message.type == "error" else 0)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("response", note)
        self.page.goto(f"{address}/{name}", wait_until="networkidle")

    def __enter__(self) -> View:
        return self

    def __exit__(self, *_: object) -> None:
        self.context.close()


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_page(browser: Any, address: str, name: str, scheme: str, width: int) -> None:
    from axe_playwright_python.sync_playwright import Axe

    with View(browser, address, name, scheme, width) as view:
        assert view.page.evaluate("document.documentElement.dataset.theme") == scheme
        assert view.foreign == []
        assert view.complaints == []
        assert view.transferred <= FIRST_VIEW, f"{view.transferred / 1e6:.2f} MB"
        assert view.page.evaluate("document.documentElement.scrollWidth") <= width, "the page scrolls sideways"
        for image in view.page.locator("figure.gg-figure img").all():
            shown = "light" in (image.get_attribute("class") or "")
            assert image.is_visible() == (shown == (scheme == "light"))
        for figure in view.page.locator("figure.gg-figure").all():
            assert figure.locator("figcaption .caption-text").is_visible()
            assert figure.locator("figcaption .gg-stamp").first.is_visible()
        found = Axe().run(view.page)  # last, because it makes requests of its own
        assert found.violations_count == 0, found.generate_report()


@pytest.mark.parametrize("name", [name for name in PAGES if name == "index.html" or name.startswith("tutorials/")])
def test_page_without_scripts(browser: Any, address: str, name: str) -> None:
    with View(browser, address, name, "light", 1280, java_script_enabled=False) as view:
        for figure in view.page.locator("figure.gg-figure").all():
            assert figure.locator("img.only-light").is_visible()
            assert not figure.locator("img.only-dark").is_visible()
            assert figure.locator("figcaption").is_visible()


def test_search_finds_a_page(browser: Any, address: str) -> None:
    with View(browser, address, "search.html?q=bandwidth", "light", 1280) as view:
        view.page.wait_for_selector("#search-results li a")
        assert view.foreign == []
        assert view.complaints == []


def test_the_search_dialog_opens_with_the_keyboard(browser: Any, address: str) -> None:
    with View(browser, address, "index.html", "light", 1280) as view:
        view.page.keyboard.press("Control+k")
        assert view.page.locator("#pst-search-dialog input[type=search]").is_visible()
