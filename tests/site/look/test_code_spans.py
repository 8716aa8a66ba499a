"""Marks in highlighted code: those that change nothing go, all others stay."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from bs4 import BeautifulSoup
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from gpuguide.site.look import code_spans

STYLES = ("a11y-high-contrast-light", "a11y-high-contrast-dark")
CODE = 'def twice(x: float) -> float:\n    return 2 * x  # "why"\n'
SITE = Path(__file__).parents[3] / "_build" / "html"


def test_classes_that_look_like_text_are_those_of_the_style_sheets() -> None:
    plain = code_spans.looking_like_text(*STYLES)
    for style in STYLES:
        sheet = HtmlFormatter(style=style).get_style_defs(".highlight")
        colour = re.search(r"\.highlight \{ background: [^;]+; color: (#\w+) \}", sheet)
        assert colour
        rules = dict(re.findall(r"\.highlight \.(\w+) \{ ([^}]+) \}", sheet))
        assert {rules.get(name, f"color: {colour[1]}") for name in plain} == {f"color: {colour[1]}"}
    assert {"n", "p", "w"} <= plain
    assert not {"k", "c1", "s2", "mi", "o"} & plain


def test_text_stays_and_so_do_marks_with_a_look() -> None:
    before = highlight(CODE, PythonLexer(), HtmlFormatter())
    after = code_spans.without_marks(before, code_spans.looking_like_text(*STYLES))
    read = [BeautifulSoup(page, "html.parser") for page in (before, after)]
    assert read[0].get_text() == read[1].get_text()
    kept = {name for span in read[1].select("span[class]") for name in span["class"]}
    assert {"k", "c1"} <= kept
    assert "n" not in kept


def test_what_is_no_block_of_code_stays() -> None:
    page = '<p><span class="n">a name</span></p>'
    assert code_spans.without_marks(page, frozenset({"n"})) == page


@pytest.mark.skipif(not SITE.exists(), reason="the site is not built; run `make site`, or `make test`")
def test_pages_of_the_site_have_none() -> None:
    plain = code_spans.looking_like_text(*STYLES)
    page = BeautifulSoup((SITE / "tutorials" / "10-logits.html").read_text(encoding="utf-8"), "html.parser")
    kept = {name for span in page.select("div.highlight > pre span[class]") for name in span["class"]}
    assert kept
    assert not kept & plain
