"""One stylesheet of all, and the icon font, reduced to what the site uses: every page loads them before it is seen.

A rule stays if every class that its selector names stands on some page, or as a word in some script, which may add it
later. Of a class that a script assembles, as ``gg-part-${part}``, the script holds only the beginning: it keeps every
class that begins so. The font keeps the characters that the remaining rules write. By hand, because PurgeCSS and its
like are npm packages with dependencies of their own, and leave the font as it is.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tinycss2

from gpuguide.site.theme import fonts

if TYPE_CHECKING:
    from sphinx.application import Sphinx

STYLES = Path("_static/styles")
WHOLE = (
    "../basic.css",
    "pydata-sphinx-theme.css",
    "../pygments.css",
    "../gpuguide.css",
    "../mystnb.*.css",
    "../copybutton.css",
)
"""Sphinx's, the theme's, that of code, ours and those of extensions, in the order in which a browser would read them"""
REDUCED = "used.css"
"""What the layout links to, in place of all of them; beside it stand the reduced fonts"""
SCRIPTS_WITHOUT_CLASSES = ("fontawesome.js", "minisearch.js", "search-entries.js")
GROUPS = ("media", "supports", "layer")
"""At-rules that hold rules"""

_CLASSES = re.compile(r'class="([^"]*)"')
_WORDS = re.compile(r"[\w-]+")
_BEGINNINGS = re.compile(r"""(?<![\w-])([a-z]\w*-[\w-]*-)(?:\$\{|["'`]\s*\+)""")
"""A word that a script goes on with a value: at least two parts, as ``gg-part-``, for ``gg-`` alone would keep all"""
_NAMED = re.compile(r"\.([A-Za-z_][\w-]*)")
_FONT = re.compile(r"url\((\.\./vendor/fontawesome/webfonts/[\w-]+\.woff2)\)")
_ADDRESS = re.compile(r"""url\((["']?)(?!["']?(?:data:|https?:|/))""")
_READ = re.compile(r"var\(\s*(--[\w-]+)")
_DECLARED = re.compile(r"""(?<=[{;\s])(--[\w-]+)\s*:(?:[^;{}"']|"[^"]*"|'[^']*')*(?:;|(?=\}))""")
_ICON = re.compile("[\ue000-\uf8ff]")  # Unicode's private use area


def connect(app: Sphinx) -> None:
    """Register this part with Sphinx."""
    app.connect("build-finished", write, priority=900)  # the theme writes the styles of code when a build is finished


def write(app: Sphinx, exception: Exception | None) -> None:
    """Write the reduced stylesheet and fonts, unless they are there and would be the same."""
    folder = Path(app.outdir) / STYLES
    if exception is not None or app.builder.format != "html" or not folder.exists():
        return
    whole = join_stylesheets(folder)
    used = find_used_classes(Path(app.outdir), whole)
    made_from = hashlib.sha256("\n".join([whole, *sorted(used)]).encode()).hexdigest()
    note = Path(app.doctreedir) / "stylesheet.txt"
    if (folder / REDUCED).exists() and note.exists() and note.read_text(encoding="utf-8") == made_from:
        return
    text = drop_unread_properties(reduce_stylesheet(whole, used))
    icons = "".join(sorted(set(_ICON.findall(text))))
    for address in _FONT.findall(text):
        font = folder / address
        (folder / font.name).write_bytes(fonts.reduce_font(font, icons))
        text = text.replace(address, font.name)
    (folder / REDUCED).write_text(text, encoding="utf-8")
    note.write_text(made_from, encoding="utf-8")


def join_stylesheets(folder: Path) -> str:
    """Return the stylesheets of a built site, one after the other, with the addresses in them seen from ``folder``.

    What it lacks, as the stylesheet of an extension that it does not use, adds nothing.
    """
    sheets = [(name.removesuffix(Path(name).name), path) for name in WHOLE for path in sorted(folder.glob(name))]
    return "\n".join(_ADDRESS.sub(rf"url(\1{way}", path.read_text(encoding="utf-8")) for way, path in sheets)


def find_used_classes(site: Path, whole: str = "") -> set[str]:
    """Return every class on the pages of a built site, and every class that their scripts name or can assemble.

    Parameters
    ----------
    site : Path
        The folder of the built site.
    whole : str
        The stylesheet whose classes a script can assemble.
    """
    found: set[str] = set()
    beginnings: set[str] = set()
    for page in site.glob("**/*.html"):
        if "_static" not in page.parts:
            for names in _CLASSES.findall(page.read_text(encoding="utf-8")):
                found.update(names.split())
    for script in site.glob("_static/**/*.js"):
        if script.name not in SCRIPTS_WITHOUT_CLASSES:
            text = script.read_text(encoding="utf-8")
            found.update(_WORDS.findall(text))
            beginnings.update(_BEGINNINGS.findall(text))
    named = set(_NAMED.findall(whole))
    return found | {name for name in named if name.startswith(tuple(beginnings))}


def reduce_stylesheet(stylesheet: str, used: set[str]) -> str:
    """Return a stylesheet without the rules whose selectors name a class that is not in ``used``.

    >>> reduce_stylesheet(".a{top:0}.a .b,.a:not(.b){left:0}@media print{.b{top:1px}}", {"a"})
    '.a{top:0}.a:not(.b){left:0}'
    """
    rules = tinycss2.parse_stylesheet(stylesheet, skip_comments=True, skip_whitespace=True)
    return "".join(_keep_rules(rules, used))


def drop_unread_properties(stylesheet: str) -> str:
    """Return a stylesheet without the custom properties that neither a ``var()`` in it nor Bootstrap's script reads.

    >>> drop_unread_properties(":root{--a:1px;--b:2px;top:var(--a)}")
    ':root{--a:1px;top:var(--a)}'
    """
    read = {*_READ.findall(stylesheet), "--bs-position"}
    return _DECLARED.sub(lambda found: found[0] if found[1] in read else "", stylesheet)


def _keep_rules(rules: Iterable[Any], used: set[str]) -> Iterator[str]:
    for rule in rules:
        if rule.type == "qualified-rule":
            selectors = [part for part in _selectors(rule.prelude) if _can_match(part, used)]
            if selectors:
                names = ",".join(tinycss2.serialize(part).strip() for part in selectors)
                yield f"{names}{{{tinycss2.serialize(rule.content)}}}"
        elif rule.type == "at-rule" and rule.at_keyword in GROUPS and rule.content is not None:
            inside = tinycss2.parse_rule_list(rule.content, skip_comments=True, skip_whitespace=True)
            if text := "".join(_keep_rules(inside, used)):
                yield f"@{rule.at_keyword}{tinycss2.serialize(rule.prelude)}{{{text}}}"
        else:
            yield rule.serialize()


def _selectors(prelude: Sequence[Any]) -> list[list[Any]]:
    """Split the tokens before a rule's brace at the commas that are not inside parentheses."""
    parts: list[list[Any]] = [[]]
    for token in prelude:
        if token.type == "literal" and token.value == ",":
            parts.append([])
        else:
            parts[-1].append(token)
    return parts


def _can_match(selector: Sequence[Any], used: set[str]) -> bool:
    return _classes(selector) <= used and all(any(piece in name for name in used) for piece in _pieces(selector))


def _pieces(selector: Sequence[Any]) -> Iterator[str]:
    """Yield what the class of an element must contain, as ``-Red`` in ``[class*=-Red]``."""
    for token in selector:
        if token.type == "[] block" and [each.value for each in token.content[:2]] == ["class", "*="]:
            yield str(token.content[2].value)


def _classes(selector: Sequence[Any]) -> set[str]:
    """Return the classes that an element must have; what stands in parentheses, as after ``:not``, is no condition."""
    return {
        token.value
        for dot, token in itertools.pairwise(selector)
        if dot.type == "literal" and dot.value == "." and token.type == "ident"
    }
