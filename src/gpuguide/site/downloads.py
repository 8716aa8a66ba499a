"""Every tutorial to take away: a notebook with outputs, one without, a Python script, and a zip of them all.

They are made from the built page when it is written, so that they say what the page says. Their addresses do not
change between builds: ``notebooks/NAME.ipynb``, ``notebooks/without-outputs/NAME.ipynb``, ``notebooks/NAME.py``.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urljoin, urlsplit

from nbformat import v4
from sphinx.errors import ConfigError, SphinxError

import gpuguide
from gpuguide.measure import store
from gpuguide.site import code_cells, library_wheel, notebook, opening_cells, pages, tutorial_zip
from gpuguide.site.cost_card import costs, executed_in
from gpuguide.site.numbers import stamps
from gpuguide.site.plain_markdown import PlainMarkdown

if TYPE_CHECKING:
    from docutils import nodes
    from sphinx.application import Sphinx
    from sphinx.builders.html import StandaloneHTMLBuilder
    from sphinx.config import Config
    from sphinx.environment import BuildEnvironment

FOLDER = "notebooks"
TUTORIALS = "tutorials/"
"""Executed pages in this folder are tutorials"""
BRANCH = "gh-pages"
"""The branch of the repository that holds the built site"""
FORMS = {
    "Notebook": "{name}.ipynb",
    "Notebook without outputs": "without-outputs/{name}.ipynb",
    "Python script": "{name}.py",
}
"""What a page offers: the link's text, and the file in :data:`FOLDER`"""


def connect(app: Sphinx) -> None:
    """Register this part with Sphinx."""
    app.add_config_value("gpuguide_repository", "", "html", str)
    app.connect("config-inited", check_repository)
    app.connect("env-get-outdated", find, priority=600)  # when the executed pages are known
    app.connect("doctree-resolved", write, priority=900)  # when numbers, times and references have been filled in
    app.connect("html-page-context", offer)
    app.connect("build-finished", finish)


# --- what there is -----------------------------------------------------------------------------------------


def check_repository(app: Sphinx, config: Config) -> None:
    """Refuse an address of the repository from which no link could be made."""
    given = config.gpuguide_repository
    if given and not re.fullmatch(r"https://[^/\s]+/[^/\s]+/[^/\s]+/?", given):
        raise ConfigError(f"gpuguide_repository is {given!r}; write https://HOST/OWNER/NAME, or nothing.")


def find(app: Sphinx, env: BuildEnvironment, added: set[str], changed: set[str], removed: set[str]) -> list[str]:
    """Check the names of all tutorials, and return those whose files are missing, so that they are made again."""
    offered = tutorials(app)
    check_names({docname: str(env.doc2path(docname)) for docname in offered})
    if app.builder.format != "html":
        return []
    return [docname for docname in offered if not all(path.exists() for path in files(app, docname).values())]


def check_names(paths: Mapping[str, str]) -> None:
    """Check that no two pages would have files of one name, also where upper and lower case are the same.

    Parameters
    ----------
    paths : mapping of str to str
        Page to its source file.
    """
    taken: dict[str, str] = {}
    for docname, path in sorted(paths.items()):
        name = PurePosixPath(docname).name
        if other := taken.get(name.casefold()):
            raise SphinxError(
                f"{path}:1: its notebook {name}.ipynb has the name of that of {other}. Rename one of them."
            )
        taken[name.casefold()] = path
        if name.isidentifier() and importlib.util.find_spec(name):
            raise SphinxError(
                f"{path}:1: its script {name}.py would be imported in place of the module {name}. "
                "Begin its name with a number: NN-short-title.md."
            )


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


@dataclass(frozen=True)
class Addresses:
    """Where the site and its repository are, as far as the configuration says."""

    base: str
    """Address of the site's root, ending in a slash, or nothing"""
    repository: str
    """Address of the repository, without a slash, or nothing"""

    @classmethod
    def of(cls, config: Config) -> Addresses:
        """Return what is configured."""
        base = config.html_baseurl
        return cls(base and base.rstrip("/") + "/", config.gpuguide_repository.rstrip("/"))

    def page(self, uri: str) -> str | None:
        """Return the address of a page, from its address within the site."""
        return urljoin(self.base, uri) if self.base else None

    def wheel(self) -> str | None:
        """Return where the wheel can be fetched: from the site, else from the branch that holds it."""
        place = f"{FOLDER}/{library_wheel.NAME}"
        if self.base:
            return urljoin(self.base, place)
        return f"{self.repository}/raw/{BRANCH}/{place}" if self._on_github() else None

    def colab(self, file: str) -> str | None:
        """Return the address that opens a notebook in Colab. Colab reads from GitHub."""
        if not self._on_github():
            return None
        path = urlsplit(self.repository).path
        return f"https://colab.research.google.com/github{path}/blob/{BRANCH}/{FOLDER}/{file}"

    def _on_github(self) -> bool:
        return urlsplit(self.repository).netloc == "github.com"


def write(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Write a tutorial's downloads, when its page is written."""
    if app.builder.format != "html" or docname not in tutorials(app):
        return
    addresses = Addresses.of(app.config)
    uri = app.builder.get_target_uri(docname)
    own = addresses.page(uri)
    path = str(app.env.doc2path(docname))
    page = pages.read(Path(path).read_text(encoding="utf-8"))

    def absolute(link: str) -> str | None:
        return link if urlsplit(link).scheme else own and urljoin(own, link)

    markdown = PlainMarkdown(absolute, Path(app.srcdir))
    pieces = notebook.Pieces(notebook.executed(app.env, docname), doctree, path, markdown)
    install = opening_cells.install(library_wheel.NAME, addresses.wheel(), page.extras)

    def with_summary(outputs: str) -> Any:
        known = {"Time": f"{executed_in(app.env, docname)} on a CPU to run it.", **facts(pieces, page, doctree)}
        origin = f"gpuguide {gpuguide.__version__}" + (f", [a page on the site]({own})" if own else "")
        known |= {
            "Outputs": outputs,
            "From": f"{origin}. The code is under the MIT licence, text and figures under CC BY 4.0.",
        }
        first = [
            v4.new_markdown_cell(opening_cells.summary(pieces.title, pieces.purpose, known), id="about"),
            v4.new_code_cell(install, id="install", metadata={"jupyter": {"source_hidden": True}}),
        ]
        return notebook.assembled(first, pieces)

    shown = outputs(pieces)
    full = with_summary(f"{shown}, as they came out when the site was built.")
    bare = notebook.without_outputs(with_summary(f"none until you run it; then {shown}."))
    texts = (notebook.text(full), notebook.text(bare), notebook.script(bare))
    for target, text in zip(files(app, docname).values(), texts, strict=True):
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8", newline="\n")


def facts(pieces: notebook.Pieces, page: pages.Page, doctree: nodes.document) -> dict[str, Any]:
    """Return what the first cell says about hardware, costs, and where the numbers come from."""
    records = [store.published(name) for name in page.benchmarks]
    found = {name: f"{text}." for name, text in costs(page, records).items()}
    measuring = sum(code_cells.measures_here(cell) for cell in pieces.page.cells if cell.cell_type == "code")
    hardware = "any computer; it needs no GPU."
    if measuring:
        who = "One cell measures" if measuring == 1 else f"{measuring} cells measure"
        hardware += f" {who} the machine that runs the notebook; what needs an NVIDIA GPU says so where there is none."
    lines = dict.fromkeys([*(run.stamp() for record in records for run in record.runs), *stamps(doctree)])
    numbers = [*lines] or "all computed in this notebook; none was measured elsewhere."
    return {"Hardware": hardware, **found, "Measured numbers": numbers}


def outputs(pieces: notebook.Pieces) -> str:
    """Return in words what a notebook shows when it has run."""
    code = [cell for cell in pieces.cells if cell.cell_type == "code"]
    return f"{_count(code_cells.figures(code), 'figure')} and {_count(code_cells.printed(code), 'printed result')}"


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
    kept = {*wanted.values(), folder / library_wheel.NAME, folder / tutorial_zip.NAME} if wanted else set()
    for path in [*folder.glob("*"), *folder.glob("*/*")]:
        if path.is_file() and path not in kept:
            path.unlink()


def _write_bundle(app: Sphinx, folder: Path, tutorial_files: Mapping[str, Path]) -> None:
    """Write the wheel, and the zip of everything, unless they are there and made from the same."""
    wheel, target = folder / library_wheel.NAME, folder / tutorial_zip.NAME
    root, site = Path(app.confdir), Addresses.of(app.config).base
    total = hashlib.sha256(f"{library_wheel.digest(root)} {site}".encode())
    for name, path in sorted(tutorial_files.items()):
        total.update(name.encode() + hashlib.sha256(path.read_bytes()).digest())
    note = Path(app.doctreedir) / "downloads.txt"
    if wheel.exists() and target.exists() and note.exists() and note.read_text(encoding="utf-8") == total.hexdigest():
        return
    library_wheel.write(root, wheel)
    tutorial_zip.write(target, {**tutorial_files, wheel.name: wheel, "LICENSE": root / "LICENSE"}, wheel.name, site)
    note.write_text(total.hexdigest(), encoding="utf-8")


# --- on the page -------------------------------------------------------------------------------------------


def offer(app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: nodes.document) -> None:
    """Give the template ``downloads.html`` the links of a page: text to address, files from the page's own folder."""
    if pagename not in tutorials(app):
        return
    builder = cast("StandaloneHTMLBuilder", app.builder)
    folder = Path(app.outdir)
    offered = {form: path.relative_to(folder).as_posix() for form, path in files(app, pagename).items()}
    offered["All tutorials (zip)"] = f"{FOLDER}/{tutorial_zip.NAME}"
    up = "../" * builder.get_target_uri(pagename).count("/")
    context["downloads"] = {text: up + address for text, address in offered.items()}
    context["colab"] = Addresses.of(app.config).colab(f"{PurePosixPath(pagename).name}.ipynb")
