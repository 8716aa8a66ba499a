"""What the tests of the site share: the browser that opens its pages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

PATIENCE = 300_000
"""Milliseconds that the browser waits for anything: ten times its usual, for a busy machine"""


@pytest.fixture(scope="module")
def browser(browser_path: Path) -> Iterator[Any]:
    """A browser for the tests of one file: while it is open, no test of any file can use `asyncio.run`."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        options = ["--no-sandbox", "--disable-gpu"]
        started = playwright.chromium.launch(executable_path=str(browser_path), args=options, timeout=PATIENCE)
        yield Patient(started)
        started.close()


class Patient:
    """A browser whose contexts wait for as long as it takes."""

    def __init__(self, browser: Any) -> None:
        self._browser = browser

    def new_context(self, **options: Any) -> Any:
        """Open a context of its own, with no pages."""
        context = self._browser.new_context(**options)
        context.set_default_timeout(PATIENCE)
        return context

    def new_page(self) -> Any:
        """Open a page in a context of its own."""
        page = self._browser.new_page()
        page.set_default_timeout(PATIENCE)
        return page
