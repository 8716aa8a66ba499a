"""Plain Markdown from the nodes of a built page: what a notebook shows where the page shows HTML.

Roles, directives and references have been resolved when a page is built, so that none of their syntax is left. What
has no place in plain Markdown is refused and not guessed at. By hand, because sphinx-markdown-builder passes over what
it does not know, and a notebook must hold all that its page says.
"""

from __future__ import annotations

import base64
import mimetypes
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from docutils import nodes

from gpuguide.errors import GpuguideError

_SPECIAL = re.compile(r"([\\`*\[\]<$])|(?<![^\W_])(_)|(_)(?![^\W_])|(~)(?=~)|(&)(?=#?\w+;)")
_LINE_START = re.compile(r"^(#{1,6}(?=\s|$)|[-+](?=\s|$)|>|[-=]+\s*$|~{3,}|\d{1,9}(?=[.)](?:\s|$)))")
_INVISIBLE = (nodes.Invisible, nodes.meta)

Address = Callable[[str], str | None]


class PlainMarkdown:
    """Writes nodes as Markdown.

    Parameters
    ----------
    address : callable
        Makes a link of the page absolute, or returns ``None`` if that cannot be done: then its text alone is written.
    images : Path
        The folder that the paths of images start from. Images are embedded.
    """

    def __init__(self, address: Address, images: Path) -> None:
        self.address = address
        self.images = images

    # --- blocks ------------------------------------------------------------------------------------------

    def blocks(self, children: Iterable[nodes.Node]) -> str:
        """Return nodes that follow each other as blocks with an empty line between them."""
        written = [self.block(child) for child in children if not isinstance(child, _INVISIBLE)]
        return "\n\n".join(text for text in written if text)

    def block(self, node: nodes.Node) -> str:
        """Return one node and what it holds.

        Raises
        ------
        GpuguideError
            If there is no Markdown for this kind of node.
        """
        for kind in type(node).__mro__:
            if write := getattr(self, f"block_{kind.__name__}", None):
                return str(write(node))
        return self.paragraph([node])

    def paragraph(self, children: Iterable[nodes.Node]) -> str:
        """Return inline nodes as a paragraph in one line, of which no character begins a list or a heading."""
        return _LINE_START.sub(lambda found: _escape_start(found[0]), self.inlines(children).strip())

    def block_paragraph(self, node: nodes.Element) -> str:
        """Return a paragraph."""
        return self.paragraph(node.children)

    block_rubric = block_caption = block_attribution = block_paragraph

    def heading(self, title: nodes.Node, level: int) -> str:
        """Return a heading."""
        return f"{'#' * min(level, 6)} {self.inlines(title.children).strip()}"

    def block_section(self, node: nodes.Element) -> str:
        """Refuse a section: the notebook cuts its cells at headings and writes these itself."""
        raise GpuguideError("A heading stands inside another block. Move it out.")

    def block_container(self, node: nodes.Element) -> str:
        """Return what a container holds."""
        return self.blocks(node.children)

    block_compound = block_legend = block_container

    def block_bullet_list(self, node: nodes.Element) -> str:
        """Return a list."""
        return self.items(node, ["- "] * len(node.children))

    def block_enumerated_list(self, node: nodes.Element) -> str:
        """Return a numbered list."""
        first = node.get("start", 1)
        return self.items(node, [f"{first + offset}. " for offset in range(len(node.children))])

    def items(self, node: nodes.Element, marks: Sequence[str]) -> str:
        """Return the items of a list, each behind its mark. A list that follows an item's line stays close to it."""
        items = []
        for item, mark in zip(node.children, marks, strict=True):
            first, *rest = item.children or [nodes.paragraph()]
            space = "\n" if all(isinstance(each, nodes.Sequential) for each in rest) else "\n\n"
            texts = [text for text in (self.block(first), self.blocks(rest)) if text]
            items.append(_indent(space.join(texts), mark))
        return _join_items(items)

    def block_definition_list(self, node: nodes.Element) -> str:
        """Return terms in bold, each with its definition, as a list."""
        items = []
        for item in node.children:
            terms = [self.inlines(term.children) for term in item.children if isinstance(term, nodes.term)]
            definitions = [self.blocks(each.children) for each in item.children if isinstance(each, nodes.definition)]
            items.append(_indent(f"**{', '.join(terms)}.** {' '.join(definitions)}", "- "))
        return _join_items(items)

    def block_block_quote(self, node: nodes.Element) -> str:
        """Return a quotation."""
        return _quote(self.blocks(node.children))

    def block_Admonition(self, node: nodes.Element) -> str:
        """Return a note, a warning or the like as a quotation that begins with its name."""
        title, rest = {"seealso": "See also"}.get(node.tagname, node.tagname.capitalize()), node.children
        if rest and isinstance(rest[0], nodes.title):
            title, rest = self.inlines(rest[0].children), rest[1:]
        return _quote(f"**{title.rstrip('.')}.**\n\n{self.blocks(rest)}")

    def block_topic(self, node: nodes.Element) -> str:
        """Return a titled block as a quotation."""
        return self.block_Admonition(node)

    block_sidebar = block_topic

    def block_fold(self, node: nodes.Element) -> str:
        """Return a fold: Jupyter, Colab and VS Code know the HTML element, and Markdown goes on inside it."""
        summary = node["summary"].replace("&", "&amp;").replace("<", "&lt;")
        return f"<details>\n<summary>{summary}</summary>\n\n{self.blocks(node.children)}\n\n</details>"

    def block_symptom(self, node: nodes.Element) -> str:
        """Return a checklist below its name."""
        title, *rest = node.children
        return f"{self.paragraph([nodes.strong('', '', *title.deepcopy().children)])}\n\n{self.blocks(rest)}"

    def block_literal_block(self, node: nodes.Element) -> str:
        """Return code between fences."""
        code = node.astext().rstrip("\n")
        fence = "`" * max(3, 1 + max((len(ticks) for ticks in re.findall("`+", code)), default=0))
        language = node.get("language", "")
        return f"{fence}{'' if language in ('default', 'none', 'text') else language}\n{code}\n{fence}"

    block_doctest_block = block_literal_block

    def block_line_block(self, node: nodes.Element) -> str:
        """Return lines that keep their ends."""
        return "\\\n".join(self.paragraph(line.children) for line in node.findall(nodes.line))

    def block_math_block(self, node: nodes.Element) -> str:
        """Return a formula that stands by itself."""
        number = f" \\tag{{{node['number']}}}" if node.get("number") else ""
        return f"$$\n{node.astext().strip()}{number}\n$$"

    def block_transition(self, node: nodes.Element) -> str:
        """Return a line across."""
        return "---"

    def block_figure(self, node: nodes.Element) -> str:
        """Return an image and its caption."""
        return self.blocks(node.children)

    def block_image(self, node: nodes.Element) -> str:
        """Return an image that stands by itself."""
        return self.inline_image(node)

    def block_reference(self, node: nodes.Element) -> str:
        """Return an image that leads somewhere."""
        return self.paragraph([node])

    def block_table(self, node: nodes.Element) -> str:
        """Return a table whose first row is its header."""
        rows = [[self.cell(entry) for entry in row.children] for row in node.findall(nodes.row)]
        if any("morecols" in entry or "morerows" in entry for entry in node.findall(nodes.entry)):
            raise GpuguideError("A table has a cell over several rows or columns, which Markdown has not. Split it.")
        if not list(node.findall(nodes.thead)):
            rows.insert(0, [""] * len(rows[0]))
        rows.insert(1, ["---"] * len(rows[0]))
        lines = [f"| {' | '.join(row)} |" for row in rows]
        titles = [f"**{self.inlines(child.children)}**\n" for child in node.children if isinstance(child, nodes.title)]
        return "\n".join([*titles, *lines])

    def cell(self, entry: nodes.Element) -> str:
        """Return a table's cell in one line."""
        for formula in entry.findall(nodes.math):
            formula.children = [nodes.Text(formula.astext().replace(r"\|", r"\Vert ").replace("|", r"\vert "))]
        lines = [self.paragraph(child.children) for child in entry.findall(nodes.paragraph)]
        return "<br>".join(lines).replace("|", r"\|")

    def block_footnote(self, node: nodes.Element) -> str:
        """Return a footnote behind its number."""
        label, *rest = node.children
        return f"\\[{label.astext()}\\] {self.blocks(rest)}"

    block_citation = block_footnote

    def block_raw(self, node: nodes.Element) -> str:
        """Leave out what only the site has, and refuse other text that is meant for one kind of output."""
        if node.get("gg_site_only"):
            return ""
        raise GpuguideError(f"Raw {node.get('format', 'text')} has no place in a notebook. Write it as Markdown.")

    def block_system_message(self, node: nodes.Element) -> str:
        """Refuse a page with an error on it."""
        raise GpuguideError(f"The page holds an error message: {' '.join(child.astext() for child in node)}")

    def block_desc(self, node: nodes.Element) -> str:
        """Refuse a description from docstrings."""
        raise GpuguideError("A description made by autodoc has no place in a notebook. Link to the API reference.")

    # --- within a line -----------------------------------------------------------------------------------

    def inlines(self, children: Iterable[nodes.Node]) -> str:
        """Return nodes that stand in one line."""
        return "".join(self.inline(child) for child in children if not isinstance(child, _INVISIBLE))

    def inline(self, node: nodes.Node) -> str:
        """Return one node within a line.

        Raises
        ------
        GpuguideError
            If there is no Markdown for this kind of node.
        """
        for kind in type(node).__mro__:
            if write := getattr(self, f"inline_{kind.__name__}", None):
                return str(write(node))
        raise GpuguideError(
            f"{type(node).__name__!r} ({node.astext()[:60]!r}) cannot be written as plain Markdown, so this page has "
            "no notebook. Write it in another way, or add it to gpuguide.site.notebooks.plain_markdown."
        )

    def inline_Text(self, node: nodes.Text) -> str:
        """Return text."""
        return escape(" ".join(str(node).split("\n")))

    def inline_emphasis(self, node: nodes.Element) -> str:
        """Return emphasis."""
        return _wrap("*", self.inlines(node.children))

    def inline_strong(self, node: nodes.Element) -> str:
        """Return strong emphasis."""
        return _wrap("**", self.inlines(node.children))

    def inline_literal(self, node: nodes.Element) -> str:
        """Return code."""
        code = " ".join(node.astext().split("\n"))
        ticks = "`" * (1 + max((len(found) for found in re.findall("`+", code)), default=0))
        space = " " if code.startswith("`") or code.endswith("`") else ""
        return f"{ticks}{space}{code}{space}{ticks}"

    def inline_math(self, node: nodes.Element) -> str:
        """Return a formula."""
        return f"${' '.join(node.astext().split())}$"

    def inline_inline(self, node: nodes.Element) -> str:
        """Return text that has a class: a verdict stands out, and that a number is stale is an aside."""
        text = self.inlines(node.children)
        if "gg-verdict" in node["classes"]:
            return _wrap("**", text)
        return f" ({text})" if "gg-stale" in node["classes"] else text

    def inline_abbreviation(self, node: nodes.Element) -> str:
        """Return the text of what is explained when one points at it."""
        return self.inlines(node.children)

    inline_title_reference = inline_generated = inline_abbreviation

    def inline_subscript(self, node: nodes.Element) -> str:
        """Return text below the line."""
        return f"<sub>{self.inlines(node.children)}</sub>"

    def inline_superscript(self, node: nodes.Element) -> str:
        """Return text above the line."""
        return f"<sup>{self.inlines(node.children)}</sup>"

    def inline_reference(self, node: nodes.Element) -> str:
        """Return a link that leads to the same place from everywhere, or its text if there is no such address."""
        text = self.inlines(node.children)
        link = self.address(node["refuri"] if "refuri" in node else f"#{node['refid']}")
        if not link:
            return text
        return f"[{text}](<{link}>)" if re.search(r"[()\s]", link) else f"[{text}]({link})"

    inline_download_reference = inline_number_reference = inline_reference

    def inline_footnote_reference(self, node: nodes.Element) -> str:
        """Return a footnote's number."""
        return f"\\[{node.astext()}\\]"

    inline_citation_reference = inline_footnote_reference

    def inline_image(self, node: nodes.Element) -> str:
        """Return an image with its data in it. Of a pair for two schemes the light one is taken."""
        if "only-dark" in node["classes"]:
            return ""
        path = self.images / node["uri"]
        kind = mimetypes.guess_type(path.name)[0]
        if not node.get("alt"):
            raise GpuguideError(f"The image {node['uri']} has no alternative text. Say in its brackets what one sees.")
        if kind is None or not path.is_file():
            raise GpuguideError(f"The image {node['uri']} is no file of a known kind, so it cannot be embedded.")
        data = base64.b64encode(path.read_bytes()).decode("ascii")
        return f"![{escape(node['alt'])}](data:{kind};base64,{data})"


def escape(text: str) -> str:
    r"""Return text of which no character means anything in Markdown.

    >>> print(escape("a_b, _c_, 2 * 3 $ and <br>"))
    a_b, \_c\_, 2 \* 3 \$ and \<br>
    """
    return _SPECIAL.sub(lambda found: "&amp;" if found[0] == "&" else f"\\{found[0]}", text)


def _escape_start(start: str) -> str:
    """Return the first characters of a paragraph so that they begin no list, heading, line or fence."""
    return f"{start}\\" if start.isdigit() else f"\\{start}"


def _wrap(mark: str, text: str) -> str:
    """Return text between marks, which must touch it."""
    inner = text.strip()
    if not inner:
        return text
    before, after = text[: len(text) - len(text.lstrip())], text[len(text.rstrip()) :]
    return f"{before}{mark}{inner}{mark}{after}"


def _indent(text: str, mark: str) -> str:
    """Return text behind a list's mark, its further lines below its first."""
    lines = text.split("\n")
    space = " " * len(mark)
    return "\n".join([mark + lines[0], *(space + line if line else "" for line in lines[1:])])


def _join_items(items: Sequence[str]) -> str:
    """Return a list's items, close together unless one has several blocks."""
    return ("\n\n" if any("\n\n" in item for item in items) else "\n").join(items)


def _quote(text: str) -> str:
    return "\n".join(f"> {line}".rstrip() for line in text.split("\n"))
