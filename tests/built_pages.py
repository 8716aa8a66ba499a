"""The pages of the built site, parsed, each once for all test files of a process."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from bs4 import BeautifulSoup

LISTINGS = re.compile(r"(<pre\b[^>]*>).*?(</pre>)|(<math\b[^>]*>).*?(</math>)", re.DOTALL)


def parse(page: Path) -> BeautifulSoup:
    """Return a page without what is in its listings and formulas: most of its elements."""
    return BeautifulSoup(LISTINGS.sub(r"\1\2\3\4", page.read_text(encoding="utf-8")), "html.parser")


@cache
def parsed(page: Path) -> BeautifulSoup:
    """Return the same, which nobody may change."""
    return parse(page)
