"""Every tutorial to take away: a notebook with outputs, one without, a Python script, and a zip of them all.

They are made from the built page when it is written, so that they say what the page says. Their addresses do not
change between builds: ``notebooks/NAME.ipynb``, ``notebooks/without-outputs/NAME.ipynb``, ``notebooks/NAME.py``.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin, urlsplit

from sphinx.errors import SphinxError

from gpuguide.measure import store
from gpuguide.site.directives.cost_card import costs, downloads_here, format_run_time
from gpuguide.site.directives.numbers import stamps
from gpuguide.site.notebooks import code_cells, library_wheel, notebook, opening_cells, tutorial_zip
from gpuguide.site.notebooks.plain_markdown import PlainMarkdown
from gpuguide.site.pages import outline, page_source, reading
from gpuguide.site.pages.addresses import FOLDER, WHEEL, Addresses

if TYPE_CHECKING:
    from docutils import nodes
    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment

TUTORIALS = "tutorials/"
"""Executed pages in this folder are tutorials"""
FORMS = {
    "Notebook": "{name}.ipynb",
    "Notebook without outputs": "without-outputs/{name}.ipynb",
    "Python script": "{name}.py",
}
"""What a page offers: the link's text, and the file in :data:`FOLDER`"""


def connect(app: Sphinx) -> None:
    """Register this part with Sphinx."""
    app.connect("env-get-outdated", find, priority=600)  # when the executed pages are known
    app.connect("doctree-resolved", write, priority=900)  # when numbers, times and references have been filled in
    app.connect("doctree-resolved", offer)
    app.connect("build-finished", finish)


# --- what there is -----------------------------------------------------------------------------------------


def find(app: Sphinx, env: BuildEnvironment, added: set[str], changed: set[str], removed: set[str]) -> list[str]:
    """Check the names of all tutorials, and return those whose files are missing, so that they are made again."""
    offered = tutorials(app)
    check_names({docname: str(env.doc2path(docname)) for docname in offered})
    if app.builder.format != "html":
        return []
    return [docname for docname in offered if not all(path.exists() for path in files(app, docname).values())]


def check_names(paths: Mapping[str, str]) -> None:
    """Stop the build at the first of :func:`find_wrong_names`."""
    for docname, problem, remedy in find_wrong_names(paths):
        raise SphinxError(f"{paths[docname]}:1: {problem} {remedy}")


def find_wrong_names(paths: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Yield pages that would have files of one name, also where upper and lower case are the same.

    Parameters
    ----------
    paths : mapping of str to str
        Page to its source file.

    Yields
    ------
    tuple of str
        The page, what is wrong with its name, and the remedy.
    """
    taken: dict[str, str] = {}
    for docname, path in sorted(paths.items()):
        name = PurePosixPath(docname).name
        if other := taken.get(name.casefold()):
            yield docname, f"its notebook {name}.ipynb has the name of that of {other}.", "Rename one of them."
        taken[name.casefold()] = path
        if name.isidentifier() and importlib.util.find_spec(name):
            problem = f"its script {name}.py would be imported in place of the module {name}."
            yield docname, problem, "Begin its name with a number: NN-short-title.md."


def tutorials(app: Sphinx) -> list[str]:
    """Return the pages that are offered as notebooks: the executed ones among the tutorials."""
    digests: dict[str, str] = vars(app.env).get("gpuguide_digests", {})
    if app.config.nb_execution_mode != "cache":
        return []
    left_out = app.config.nb_execution_excludepatterns
    return [
        docname
        for docname in digests
        if docname.startswith(TUTORIALS) and not any(PurePosixPath(f"{docname}.md").match(each) for each in left_out)
    ]


def files(app: Sphinx, docname: str) -> dict[str, Path]:
    """Return where a tutorial's downloads are written, by the text of their links."""
    name = PurePosixPath(docname).name
    return {form: Path(app.outdir) / FOLDER / file.format(name=name) for form, file in FORMS.items()}


# --- the files ---------------------------------------------------------------------------------------------


def write(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Write a tutorial's downloads, when its page is written."""
    if app.builder.format != "html" or docname not in tutorials(app):
        return
    full, bare = notebooks(app, doctree, docname)
    texts = (notebook.text(full), notebook.text(bare), notebook.script(bare))
    for target, text in zip(files(app, docname).values(), texts, strict=True):
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8", newline="\n")


def notebooks(app: Sphinx, doctree: nodes.document, docname: str) -> tuple[Any, Any]:
    """Return a page as a notebook with outputs, and as one without."""
    addresses = Addresses.from_config(app.config)
    own = addresses.page(app.builder.get_target_uri(docname))
    path = str(app.env.doc2path(docname))
    source = Path(path).read_text(encoding="utf-8")
    page = page_source.read(source)
    minutes = f"{reading.measure_reading(source).describe()}."

    def absolute(link: str) -> str | None:
        return link if urlsplit(link).scheme else own and urljoin(own, link)

    pieces = notebook.Pieces(
        notebook.load_executed(app.env, docname), doctree, path, PlainMarkdown(absolute, Path(app.srcdir))
    )
    took = (
        f"{format_run_time(app.env, docname)} on a CPU to run it."
        if not page.not_run
        else f"not known: {page.not_run}."
    )
    known = {"Reading": minutes, "Time": took, **facts(pieces, page, doctree)}
    extras = opening_cells.requirements(Path(app.confdir), page.extras) if page.extras else {}
    install = opening_cells.install(WHEEL, addresses.wheel(), extras, page.gpu)

    def add_opening(outputs: str) -> Any:
        summary = opening_cells.summary(
            pieces.title, pieces.purpose, {**known, "Outputs": outputs, "From": opening_cells.origin(own)}
        )
        return notebook.assemble(opening_cells.cells(summary, install), pieces)

    shown = outputs(pieces)
    return (
        add_opening(f"{shown}, as they came out when the site was built." if not page.not_run else "none."),
        notebook.remove_outputs(add_opening(f"none until you run it; then {shown}.")),
    )


def facts(pieces: notebook.Pieces, page: page_source.PageSource, doctree: nodes.document) -> dict[str, str | list[str]]:
    """Return what the first cell says about hardware, costs, and where the numbers come from."""
    records = [store.load_published(name) for name in page.benchmarks]
    measuring = sum(code_cells.measures_here(cell) for cell in pieces.page.cells if cell.cell_type == "code")
    lines = dict.fromkeys([*(run.stamp() for record in records for run in record.runs), *stamps(doctree)])
    return {
        "Hardware": opening_cells.hardware(measuring),
        **{name: f"{text}." for name, text in costs(page, records).items()},
        "Measured numbers": [*lines] or "all computed in this notebook; none was measured elsewhere.",
    }


def outputs(pieces: notebook.Pieces) -> str:
    """Return in words what a notebook shows when it has run."""
    code = [cell for cell in pieces.cells if cell.cell_type == "code"]
    return (
        f"{_count(code_cells.figures(code), 'figure')} and {_count(code_cells.count_outputs(code), 'printed result')}"
    )


def _count(number: int, thing: str) -> str:
    return f"{number or 'no'} {thing}{'s' * (number != 1)}"


def finish(app: Sphinx, exception: Exception | None) -> None:
    """Write the wheel and the zip if what is in them has changed, and remove what belongs to no tutorial."""
    if exception is not None or app.builder.format != "html":
        return
    folder = Path(app.outdir) / FOLDER
    wanted = {
        path.relative_to(folder).as_posix(): path
        for docname in tutorials(app)
        for path in files(app, docname).values()
        if path.exists()
    }
    if wanted:
        _write_bundle(app, folder, wanted)
    kept = {*wanted.values(), folder / WHEEL, folder / tutorial_zip.NAME} if wanted else set()
    for path in [*folder.glob("*"), *folder.glob("*/*")]:
        if path.is_file() and path not in kept:
            path.unlink()


def _write_bundle(app: Sphinx, folder: Path, tutorial_files: Mapping[str, Path]) -> None:
    """Write the wheel, and the zip of everything, each unless it is there and made from the same."""
    wheel, target = folder / WHEEL, folder / tutorial_zip.NAME
    root, site = Path(app.confdir), Addresses.from_config(app.config).base
    note = Path(app.doctreedir) / "downloads.json"
    before = json.loads(note.read_text(encoding="utf-8")) if note.exists() else {}
    library = library_wheel.digest(root)
    contents = {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in sorted(tutorial_files.items())}
    listed = table_of_contents(app)
    now = {"wheel": library, "zip": [library, site, listed, contents]}
    if before.get("wheel") != now["wheel"] or not wheel.exists():
        library_wheel.write(root, wheel)
    if before.get("zip") != now["zip"] or not target.exists():
        bundled = {**tutorial_files, wheel.name: wheel, "LICENSE": root / "LICENSE"}
        tutorial_zip.write(target, bundled, wheel.name, listed, site)
    note.write_text(json.dumps(now), encoding="utf-8")


def table_of_contents(app: Sphinx) -> str:
    """Return the tutorials by part, in Markdown."""
    offered = tutorials(app)
    lines: list[str] = []
    for part in outline.parts(app.env, f"{TUTORIALS}index"):
        lines += ["", f"## {part.title}", ""] if part.title else []
        pages = [page for page in part.pages if page in offered]
        lines += [f"- `{PurePosixPath(page).name}`: {app.env.titles[page].astext()}" for page in pages]
    return "\n".join(lines).strip() + "\n"


# --- on the page -------------------------------------------------------------------------------------------


def offer(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Give the line under a page's title its links: text to address, files from the page's own folder."""
    if app.builder.format != "html" or docname not in tutorials(app):
        return
    folder = Path(app.outdir)
    offered = {form: path.relative_to(folder).as_posix() for form, path in files(app, docname).items()}
    offered["All tutorials (zip)"] = f"{FOLDER}/{tutorial_zip.NAME}"
    up = "../" * app.builder.get_target_uri(docname).count("/")
    for place in doctree.findall(downloads_here):
        place["links"] = {text: up + address for text, address in offered.items()}
        place["colab"] = Addresses.from_config(app.config).colab(f"{PurePosixPath(docname).name}.ipynb") or ""
