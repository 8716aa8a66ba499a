"""Code without the marks of what looks like any other text, a quarter of a page's size.

Pygments marks every name, bracket and space. Where neither scheme's style gives these another look than the code
around them has, the mark is taken off. Sphinx marks every word of code within a sentence or a signature, so that no
line breaks inside it. The mark stays on those inside which a line could break.
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Any

from pygments.styles import get_style_by_name
from pygments.token import STANDARD_TYPES, Text

if TYPE_CHECKING:
    from sphinx.application import Sphinx

SCHEMES = ("light", "dark")
_BLOCK = re.compile(r'(<div class="highlight"><pre>|<dt class="sig [^>]*>)(.*?)(</pre>|</dt>)', re.DOTALL)
_UNBREAKABLE = re.compile(r'<span class="pre">([^<?/-]*)</span>')


def connect(app: Sphinx) -> None:
    """Register this part with Sphinx."""
    app.connect("html-page-context", take_off)


def take_off(app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: object) -> None:
    """Take the needless marks off the code of a page that is about to be written."""
    options = app.config.html_theme_options
    styles = [options[f"pygments_{scheme}_style"] for scheme in SCHEMES if f"pygments_{scheme}_style" in options]
    if "body" in context and len(styles) == len(SCHEMES):
        context["body"] = without_marks(context["body"], looking_like_text(*styles))


@functools.cache
def looking_like_text(*styles: str) -> frozenset[str]:
    """Return the classes of what has the colour and the weight of plain code in every one of these styles."""
    found = set(STANDARD_TYPES.values()) - {""}
    for name in styles:
        style = get_style_by_name(name)
        plain = style.style_for_token(Text)
        found &= {short for token, short in STANDARD_TYPES.items() if style.style_for_token(token) == plain}
    return frozenset(found)


def without_marks(page: str, plain: frozenset[str]) -> str:
    """Return HTML whose code has no marks of these classes, and none on words that do not break.

    >>> block = '<div class="highlight"><pre><span class="n">x</span><span class="mi">1</span></pre>'
    >>> without_marks(block, frozenset({"n"}))
    '<div class="highlight"><pre>x<span class="mi">1</span></pre>'
    >>> words = '<code><span class="pre">bench</span> <span class="pre">--quick</span></code>'
    >>> without_marks(words, frozenset({"n"}))
    '<code>bench <span class="pre">--quick</span></code>'
    """
    page = _UNBREAKABLE.sub(r"\1", page)
    mark = re.compile(rf'<span class="(?:{"|".join(sorted(plain))})">([^<]*)</span>')
    return _BLOCK.sub(lambda block: block[1] + mark.sub(r"\1", block[2]) + block[3], page)
