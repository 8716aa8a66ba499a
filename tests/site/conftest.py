"""What the tests of the site share: the browser that opens its pages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def browser(browser_path: Path) -> Iterator[Any]:
    """A browser for the tests of one file: while it is open, no test of any file can use `asyncio.run`."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=str(browser_path), args=["--no-sandbox", "--disable-gpu"])
        yield started
        started.close()
