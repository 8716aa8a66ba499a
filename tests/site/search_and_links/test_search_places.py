"""What search reads of a built page."""

from __future__ import annotations

import json

from gpuguide.site.search_and_links.search_entries import KINDS, SHOWN, Entry, keep_what_is_shown, script, shorten
from gpuguide.site.search_and_links.search_places import CALCULATOR, CHECKLIST, CLAIM, FIGURE, SECTION, read

PAGE = """<body><nav>Around the page</nav><article class="bd-article"><section id="a-page"><h1>A page</h1>
<p>What it is <em>ab</em>out.</p><ul><li>one</li><li>two</li></ul>
<section id="first"><h2>First<a class="headerlink" href="#first">#</a></h2><p>Text &amp; more.</p>
<details class="gg-fold"><summary>Why</summary><p>Folded text.</p></details>
<div class="highlight"><pre><span>scaler</span> = <span>GradScaler</span>()</pre></div>
<div class="output"><pre>printed 123</pre></div>
<figure id="curve"><img class="only-light" alt="A curve rises."/><img class="only-dark" alt="A curve rises."/>
<figcaption><p><span class="caption-text">Rates. Dashed: the ceiling.</span><a class="headerlink">#</a></p>
<div class="legend"><p class="gg-stamp">NVIDIA H200 · n = 20</p></div></figcaption></figure>
<p>After it.</p></section>
<div class="gg-claim" id="claim-a"><p class="gg-heard">“It is so.” <span class="gg-verdict">False</span></p>
<p>It is not.</p>
<p>unclosed <b>bold</div><p>Last.</p></section></article><footer>Below it</footer></body>"""


def test_text_belongs_to_the_innermost_place() -> None:
    page, first, figure, claim = read(PAGE)
    assert [place.kind for place in (page, first, figure, claim)] == [SECTION, SECTION, FIGURE, CLAIM]
    assert [place.anchor for place in (page, first, figure, claim)] == ["", "first", "curve", "claim-a"]
    assert page.text == "What it is about. one two Last."
    assert first.text == "Text & more. Why Folded text. After it."
    assert first.listed_words == "GradScaler", "a name, and no word that sentences have as well"
    assert (figure.name, figure.text) == ("Rates. Dashed: the ceiling.", "A curve rises. Rates. Dashed: the ceiling.")
    assert (claim.name, claim.text) == ("“It is so.”", "“It is so.” False It is not. unclosed bold")


def test_a_page_with_a_calculator_is_one() -> None:
    (page,) = read(
        '<article class="bd-article"><section id="p"><div class="gg-calculator" id="c"></div></section></article>'
    )
    assert (page.kind, page.anchor) == (CALCULATOR, "")


def test_a_claim_in_a_fold_has_the_address_of_its_content() -> None:
    fold = '<summary>“So.” <span class="gg-verdict">True</span></summary><div id="claim-b"><p>It is.</p></div>'
    page = f'<article class="bd-article"><section id="p"><details class="gg-claim">{fold}</details></section></article>'
    _, claim = read(page)
    assert (claim.kind, claim.anchor, claim.name, claim.text) == (CLAIM, "claim-b", "“So.”", "“So.” True It is.")


def test_an_excerpt_can_show_sentences_and_nothing_else() -> None:
    """No table, nothing that only stands without scripts, no code that draws, no links below a figure."""
    table = "<table><tr><td>2.67</td><td>H200</td><td>faster eager</td></tr></table>"
    others = '<details class="gg-code-fold"><summary>Code</summary></details><p class="gg-figure-links">Link</p>'
    (page,) = read(
        f'<article class="bd-article"><section id="p">{table}<p>Faster.</p>{others}'
        '<div class="gg-worked"><p>The calculator needs JavaScript.</p></div></section></article>'
    )
    assert page.text == "Faster."
    assert page.listed_words == "eager H200"


def test_a_figure_that_stands_with_its_code_in_a_fold_has_its_name() -> None:
    figure = '<figure id="f"><figcaption><span class="caption-text">Rates.</span></figcaption></figure>'
    page, drawn = read(
        '<article class="bd-article"><section id="p"><details class="gg-code-fold"><summary>Code</summary>'
        f"<pre>draw_curve()</pre>{figure}</details></section></article>"
    )
    assert (drawn.name, drawn.text) == ("Rates.", "Rates.")
    assert (page.text, page.listed_words) == ("", "")


def test_a_checklist_is_a_place_that_its_symptom_names() -> None:
    title = '<h3 class="gg-symptom-title">The loss is NaN<a class="headerlink" href="#nan">#</a></h3>'
    item = '<li>Look at <code>exp</code> <span class="gg-remedy">→ Scale it.</span></li>'
    page, checklist = read(
        '<article class="bd-article"><section id="p"><p>Before.</p>'
        f'<div class="gg-symptom" id="nan">{title}<ol>{item}</ol></div><p>After.</p></section></article>'
    )
    assert (checklist.kind, checklist.anchor, checklist.name) == (CHECKLIST, "nan", "The loss is NaN")
    assert checklist.text == "The loss is NaN Look at exp → Scale it."
    assert page.text == "Before. After."


def test_labels_of_tabs_are_no_words_of_a_page() -> None:
    tabs = '<fieldset class="gg-tabs"><legend class="gg-tabs-legend">Code with</legend><input type="radio">'
    panel = '<label class="gg-tab-label">PyTorch</label><div class="gg-tab-panel"><pre>GradScaler()</pre></div>'
    (page,) = read(
        f'<article class="bd-article"><section id="p"><p>Text.</p>{tabs}{panel}</fieldset></section></article>'
    )
    assert (page.text, page.listed_words) == ("Text.", "GradScaler")


def test_a_page_without_an_article_has_no_places() -> None:
    assert read("<body><section id='a'><p>Text</p></section></body>") == []


def test_a_row_of_the_list_ends_with_its_last_text() -> None:
    found = [Entry("Page", "A “page”", "a.html"), Entry("Section", "B", "a.html#b", text="words")]
    known, first, second = script(found, {"same": [["a", "b"]], "asked": {"a": ["what is a"]}}).splitlines()[:3]
    assert '"same": [["a", "b"]]' in known
    assert "what is a" not in known, "the entries have the questions"
    assert first == f'[{KINDS.index("Page")}, "A “page”", "a.html"],'
    assert second == f'[{KINDS.index("Section")}, "B", "a.html#", "", "", "words"]', (
        "search.js makes the anchor of the name"
    )


def test_a_beginning_is_whole_sentences_or_whole_words() -> None:
    assert shorten("") == ""
    assert shorten("One sentence. Another one. And " + 40 * "so on ") == "One sentence. Another one."
    assert shorten(60 * "word ").endswith("word …")


def test_names_of_the_library_share_a_row() -> None:
    names = [
        ("costs", "module"),
        ("costs.ridge", "function"),
        ("costs.Floor", "class"),
        ("costs.Floor.time", "property"),
    ]
    made = script([Entry("Library", name, "docs/api/costs.html", kind) for name, kind in names], {})
    rows = [json.loads(line.removesuffix(",")) for line in made.splitlines()[1:-1]]
    assert [row[1:] for row in rows] == [
        ["", "docs/api/costs.html", "module costs"],
        ["costs", "docs/api/costs.html", "function ridge, class Floor"],
        ["costs.Floor", "docs/api/costs.html", "property time"],
    ]


def test_a_long_text_keeps_whole_sentences_and_the_words_that_one_seeks() -> None:
    entry = keep_what_is_shown(
        Entry("Section", "A", "a.html#a", text=99 * "Some words. " + "Then an H100.", listed_words="some cells")
    )
    assert len(entry.text) <= SHOWN
    assert entry.text.endswith("Some words.")
    assert entry.listed_words == "cells H100"
    short = Entry("Section", "A", "a.html#a", text="Short.")
    assert keep_what_is_shown(short) == short
