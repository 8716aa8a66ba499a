"""Find the browser that the browser tests drive: an installed Chromium or Chrome, else Playwright's own.

As a program it fetches Playwright's own where no browser is there, and says what the tests will do.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
MAC_APPS = (
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
)
HOW_TO_ENABLE = (
    "no Chromium or Chrome found, so the browser tests do not run; install one (on Debian: "
    "apt install chromium), run `make browser`, or set GPUGUIDE_BROWSER to the path of one"
)


@functools.cache
def find_browser() -> Path | None:
    """Return the path of a Chromium or Chrome, or None; where GPUGUIDE_BROWSER names one, only that."""
    if named := os.environ.get("GPUGUIDE_BROWSER"):
        return Path(named) if Path(named).is_file() else None
    for name in NAMES:
        if found := shutil.which(name):
            return Path(found)
    for app in MAC_APPS:
        if Path(app).is_file():
            return Path(app)
    return _playwrights_own()


def _playwrights_own() -> Path | None:
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:  # a machine with a GPU, where only the library is tested
        return None
    with sync_playwright() as playwright:
        path = Path(playwright.chromium.executable_path)
    return path if path.is_file() else None


def main() -> int:
    """Fetch Playwright's Chromium where no browser is there; with --required, fail where that fails."""
    if find_browser():
        return 0
    required = int("--required" in sys.argv[1:])
    if named := os.environ.get("GPUGUIDE_BROWSER"):
        print(f"GPUGUIDE_BROWSER names {named}, which is no file, so the browser tests do not run.", file=sys.stderr)
        return required
    print("No Chromium or Chrome is installed: fetching Playwright's own for the browser tests.", file=sys.stderr)
    fetched = subprocess.run([sys.executable, "-m", "playwright", "install", "chromium"], check=False)
    find_browser.cache_clear()
    if fetched.returncode == 0 and find_browser():
        return 0
    print(f"That failed: {HOW_TO_ENABLE}.", file=sys.stderr)
    return required


if __name__ == "__main__":
    sys.exit(main())
