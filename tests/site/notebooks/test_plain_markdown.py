"""Plain Markdown from nodes: a CommonMark parser of its own reads from it what the page says."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest
from docutils import nodes
from docutils.core import publish_doctree
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from myst_parser.parsers.docutils_ import Parser

from gpuguide.errors import GpuguideError
from gpuguide.site.notebooks.plain_markdown import PlainMarkdown, escape
from gpuguide.site.pages.folds import fold
from gpuguide.site.pages.tables import table

COMMONMARK = MarkdownIt("commonmark").enable(["table", "strikethrough"])
PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010804000000b51c0c020000000b4944415478da6364600000000600023081d02f"
    "0000000049454e44ae426082"
)


def written(*blocks: nodes.Node, images: Path = Path()) -> str:
    """Return nodes as Markdown; links within the page lead to example.org."""
    return PlainMarkdown(lambda link: link if ":" in link else f"https://example.org/page{link}", images).blocks(blocks)


def parsed(source: str) -> list[nodes.Node]:
    """Return the blocks of a MyST source."""
    settings = {"myst_enable_extensions": ["dollarmath"], "report_level": 5, "doctitle_xform": False}
    return publish_doctree(source, parser=Parser(), settings_overrides=settings).children


@given(st.text(st.characters(codec="utf-8", exclude_categories=["C", "Zl", "Zp"]), min_size=1))
def test_escaped_text_is_read_back_as_it_was(text: str) -> None:
    paragraph = written(nodes.paragraph("", text))
    read = COMMONMARK.render(paragraph)
    if not text.strip():
        assert read == ""
        return
    inner = re.fullmatch(r"<p>(.*)</p>\n", read, re.DOTALL)
    assert inner is not None, f"{paragraph!r} is no paragraph: {read!r}"
    assert html.unescape(inner[1]) == text.strip()


@given(st.text("`ab ", min_size=1).filter(lambda text: text.strip() == text))
def test_code_is_read_back_as_it_was(code: str) -> None:
    assert (
        COMMONMARK.render(written(nodes.paragraph("", "", nodes.literal("", code)))) == f"<p><code>{code}</code></p>\n"
    )


@pytest.mark.parametrize(
    "source",
    [
        "A *word*, a **strong** one, `code`, and [a link](https://example.org/a_(b)).",
        "- one\n- two\n  - three\n  - four\n- five",
        "1. one\n2. two",
        "4. four\n\n   more of four\n\n5. five",
        "- one\n\n  its second paragraph\n\n  ```\n  x = 1\n\n  y = 2\n  ```\n\n- two",
        "> quoted\n>\n> - and listed",
        "````\nprint('```')\n````",
        "````\n```\ninner\n```\n````",
        "| a | b |\n| --- | --- |\n| *x* | `y` |\n| 1 \\| 2 | 3 |",
        "one\n\n---\n\ntwo",
        "Not a list: \\- and \\1. and \\# and 2 \\* 3 \\* 4, snake_case_name, \\_so\\_, \\<tag>, \\~~gone~~, &amp;amp;",
    ],
)
def test_commonmark_says_the_same_after_the_way_through_the_page(source: str) -> None:
    assert COMMONMARK.render(written(*parsed(source))) == COMMONMARK.render(source)


def test_code_names_its_language() -> None:
    assert written(nodes.literal_block("", "x = 1", language="python")) == "```python\nx = 1\n```"
    assert written(nodes.literal_block("", "x = 1", language="default")) == "```\nx = 1\n```"


def test_formulas_stay_tex() -> None:
    assert (
        written(*parsed("Work $2mnk$.\n\n$$\na_i = \\frac{b}{c}\n$$")) == "Work $2mnk$.\n\n$$\na_i = \\frac{b}{c}\n$$"
    )


def test_a_dollar_is_no_formula() -> None:
    assert written(nodes.paragraph("", "from $2 to $3")) == r"from \$2 to \$3"


def test_a_bar_in_a_formula_ends_no_cell() -> None:
    formula = nodes.math("", r"|x| + \|y\|")
    assert written(table(["a"], [[formula]])).splitlines()[-1] == r"| $\vert x\vert + \Vert y\Vert$ |"


def test_notes_become_quotations() -> None:
    note = nodes.note(
        "", nodes.paragraph("", "Look."), nodes.bullet_list("", nodes.list_item("", nodes.paragraph("", "x")))
    )
    assert written(note) == "> **Note.**\n>\n> Look.\n>\n> - x"
    titled = nodes.admonition("", nodes.title("", "A word"), nodes.paragraph("", "Look."))
    assert written(titled) == "> **A word.**\n>\n> Look."


def test_folds_become_an_html_element_with_markdown_in_it() -> None:
    made = written(fold("", nodes.paragraph("", "", nodes.strong("", "in")), summary="A < B & C", classes=["gg-fold"]))
    assert COMMONMARK.render(made) == (
        "<details>\n<summary>A &lt; B &amp; C</summary>\n<p><strong>in</strong></p>\n</details>"
    )


def test_terms_become_a_list() -> None:
    item = nodes.definition_list_item(
        "", nodes.term("", "ridge"), nodes.definition("", nodes.paragraph("", "where two limits meet"))
    )
    assert written(nodes.definition_list("", item)) == "- **ridge.** where two limits meet"


def test_links_are_absolute_or_only_text() -> None:
    link = nodes.paragraph("", "", nodes.reference("", "there", refid="place"))
    assert written(link) == "[there](https://example.org/page#place)"
    assert PlainMarkdown(lambda _: None, Path()).blocks([link]) == "there"


def test_a_stale_number_says_so() -> None:
    number = nodes.reference(
        "", "3 TB/s", nodes.inline("", "stale", classes=["gg-stale"]), refuri="https://example.org"
    )
    number.children = [nodes.Text("3 TB/s"), nodes.inline("", "stale", classes=["gg-stale"])]
    assert written(nodes.paragraph("", "", number)) == "[3 TB/s (stale)](https://example.org)"


def test_images_are_embedded_with_their_text(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(PIXEL)
    image = nodes.image(uri="a.png", alt="A [small] dot")
    made = written(image, images=tmp_path)
    assert made.startswith(r"![A \[small\] dot](data:image/png;base64,iVBOR")
    assert written(nodes.image(uri="b.png", alt="dark", classes=["only-dark"])) == ""


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (nodes.image(uri="a.png"), "no alternative text"),
        (nodes.image(uri="missing.png", alt="x"), "cannot be embedded"),
        (nodes.raw("", "<hr>", format="html"), "Raw html has no place"),
        (nodes.problematic("", "`x`"), "'problematic' .* cannot be written as plain Markdown"),
        (nodes.system_message("", nodes.paragraph("", "bad")), "error message"),
    ],
)
def test_what_has_no_markdown_is_refused(node: nodes.Node, message: str) -> None:
    with pytest.raises(GpuguideError, match=message):
        written(node)


def test_escapes_are_few() -> None:
    plain = "A cache-line of 128 B, 1.5x as fast (n = 20): seq_len=8192, 50 % & more!"
    assert escape(plain) == plain
