"""The reduced stylesheet: what it keeps, what it leaves out, and that no page misses a rule of the theme."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import tinycss2
from fontTools.ttLib import TTFont

from gpuguide.costs import memory
from gpuguide.site.theme import fonts, stylesheet
from gpuguide.site.theme.assets import THEME

SITE = Path(__file__).parents[3] / "_build" / "html"
built = pytest.mark.skipif(not SITE.exists(), reason="the site is not built; run `make site`, or `make test`")


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (".a{top:0}", ".a{top:0}"),
        (".b{top:0}", ""),
        (".b,.a>p{top:0}", ".a>p{top:0}"),
        (".a.b{top:0}", ""),
        ("p:not(.b){top:0}", "p:not(.b){top:0}"),
        (":is(.a,.b) i{top:0}", ":is(.a,.b) i{top:0}"),
        ("html[data-theme=dark] .b{top:0}", ""),
        ("@media print{.a{top:0}.b{top:0}}", "@media print{.a{top:0}}"),
        ("@media print{.b{top:0}}", ""),
        ("@font-face{src:url(x.woff2)}", "@font-face{src:url(x.woff2)}"),
        (r".w-1\/2{top:0}", ""),
        (':root{--x:"}"}.b{top:0}', ':root{--x:"}"}'),
        (".a[class*=a]{top:0}.a[class*=-Red]{top:0}", ".a[class*=a]{top:0}"),
        ("p:not([class*=-Red]){top:0}", "p:not([class*=-Red]){top:0}"),
    ],
)
def test_a_rule_stays_if_its_classes_are_used(text: str, kept: str) -> None:
    assert stylesheet.reduce_stylesheet(text, {"a"}) == kept


def test_an_escaped_class_is_the_class_that_a_page_has() -> None:
    assert stylesheet.reduce_stylesheet(r".w-1\/2{top:0}", {"w-1/2"})


def test_stylesheets_from_elsewhere_find_their_files(tmp_path: Path) -> None:
    folder = tmp_path / "_static" / "styles"
    folder.mkdir(parents=True)
    (folder / "pydata-sphinx-theme.css").write_text(".a{src:url(../a.woff2)}", encoding="utf-8")
    ours = '.b{src:url("b.woff2")}.c{src:url(data:x)}'
    (folder.parent / "gpuguide.css").write_text(ours, encoding="utf-8")
    text = stylesheet.join_stylesheets(folder)
    assert text == '.a{src:url(../a.woff2)}\n.b{src:url("../b.woff2")}.c{src:url(data:x)}'


def test_what_a_page_or_a_loaded_script_names_is_used(tmp_path: Path) -> None:
    (tmp_path / "_static" / "scripts").mkdir(parents=True)
    (tmp_path / "index.html").write_text('<p class="a b"></p>', encoding="utf-8")
    (tmp_path / "_static" / "webpack-macros.html").write_text('<p class="c"></p>', encoding="utf-8")
    (tmp_path / "_static" / "scripts" / "x.js").write_text('e.classList.add("shown")', encoding="utf-8")
    (tmp_path / "_static" / "scripts" / "fontawesome.js").write_text('"fa-ghost"', encoding="utf-8")
    used = stylesheet.find_used_classes(tmp_path)
    assert {"a", "b", "shown"} <= used
    assert not {"c", "fa-ghost"} & used


@pytest.mark.parametrize("script", ["`x gg-part-${part}`", '"gg-part-" + part', "'gg-part-'+part"])
def test_what_a_script_assembles_is_used(tmp_path: Path, script: str) -> None:
    (tmp_path / "_static").mkdir()
    (tmp_path / "_static" / "x.js").write_text(f"e.className = {script}; e.id = `gg-${{name}}`", encoding="utf-8")
    rules = ".gg-part-cache{top:0}.gg-part-logits .x-y{top:0}.gg-other-cache{top:0}.gg-word{top:0}"
    used = stylesheet.find_used_classes(tmp_path, rules)
    assert stylesheet.reduce_stylesheet(rules, used) == ".gg-part-cache{top:0}"


def test_every_class_that_a_calculator_assembles_keeps_its_rules(tmp_path: Path) -> None:
    shutil.copytree(THEME / "static", tmp_path / "_static")
    (tmp_path / "index.html").write_text('<p class="bd-article"></p>', encoding="utf-8")
    whole = (THEME / "static" / "gpuguide.css").read_text(encoding="utf-8")
    kept = stylesheet.reduce_stylesheet(whole, stylesheet.find_used_classes(tmp_path, whole))
    for name in [*(f"gg-part-{part}" for part in memory.PARTS), "gg-field-flag", "gg-good", "gg-between", "gg-bad"]:
        assert name in whole
        assert kept.count(f".{name}") == stylesheet.reduce_stylesheet(whole, everything(whole)).count(f".{name}"), name


def everything(whole: str) -> set[str]:
    """Return every word of a stylesheet, with which no rule is left out."""
    return set(re.findall(r"[\w-]+", whole))


def list_rules(rules: list[Any]) -> Iterator[str]:
    """Yield the rules of a stylesheet, those in groups after the line of their group, without custom properties."""
    for rule in rules:
        group = rule.type == "at-rule" and rule.at_keyword in stylesheet.GROUPS
        yield tinycss2.serialize(rule.prelude) + (rule.at_keyword if rule.type == "at-rule" else "")
        if group:
            yield from list_rules(tinycss2.parse_rule_list(rule.content, skip_comments=True, skip_whitespace=True))
        elif rule.content is not None:
            lines = tinycss2.parse_declaration_list(rule.content, skip_comments=True, skip_whitespace=True)
            if any(each.type == "error" for each in lines):  # keyframes, which hold rules of their own
                yield tinycss2.serialize(rule.content)
            else:
                yield "".join(each.serialize() for each in lines if not getattr(each, "name", "").startswith("--"))


def read_properties(text: str) -> set[str]:
    """Return the custom properties that the rules of a stylesheet read."""
    return set(re.findall(r"var\(\s*(--[\w-]+)", text))


def declares(text: str, name: str) -> bool:
    """Tell whether a rule of a stylesheet gives a custom property a value."""
    return re.search(rf"(?<![\w-]){name}\s*:", text) is not None


@built
def test_the_site_keeps_every_rule_that_its_pages_need() -> None:
    folder = SITE / stylesheet.STYLES
    whole = stylesheet.join_stylesheets(folder)
    small = (folder / stylesheet.REDUCED).read_text(encoding="utf-8")
    assert len(small) < len(whole) / 2
    kept = tinycss2.parse_stylesheet(small)
    used = stylesheet.find_used_classes(SITE, whole)
    needed = stylesheet.reduce_stylesheet(whole, used).replace("../vendor/fontawesome/webfonts/", "")
    assert list(list_rules(kept)) == list(list_rules(tinycss2.parse_stylesheet(needed)))
    assert not [name for name in read_properties(small) if declares(needed, name) and not declares(small, name)]
    assert not [rule for rule in kept if rule.type == "error"]


@built
def test_the_icon_font_has_what_the_rules_write() -> None:
    folder = SITE / stylesheet.STYLES
    small = (folder / stylesheet.REDUCED).read_text(encoding="utf-8")
    icon = re.search(r'\.fa-bars\{--fa:"(.)"', small)
    assert icon
    content = (folder / "fa-solid-900.woff2").read_bytes()
    assert len(content) < 10_000
    assert ord(icon[1]) in TTFont(BytesIO(content)).getBestCmap()
    whole = SITE / "_static" / "vendor" / "fontawesome" / "webfonts" / "fa-solid-900.woff2"
    assert fonts.reduce_font(whole, icon[1]) == fonts.reduce_font(whole, icon[1])
