"""The pages of source that sphinx.ext.viewcode makes: what they lead back to, and which modules they are of.

Viewcode takes it that all of a module is described under one name. Here a package passes on some names of its parts,
``gpuguide.logits.softmax``, and others are described where they are defined. It asks Python where a thing is defined,
too, which for a constant says "builtins"; the library's source says it better.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuguide.measure import digest
from gpuguide.site.search_and_links.code_links import where_described
from gpuguide.site.search_and_links.code_names import definition

if TYPE_CHECKING:
    from sphinx.application import Sphinx

FOLDER = "_modules/"
MODULES = "_viewcode_modules"
"""Viewcode's list of modules in the environment"""
LIST = f"{FOLDER}index"
"""The page that names all modules"""
EVENT = "viewcode-follow-imported"
_BACK = re.compile(r'(<div class="viewcode-block" id="([^"]+)">\s*<a class="viewcode-back" href=")[^"]*"')


def connect(app: Sphinx) -> None:
    """Register this part with Sphinx."""
    app.connect("config-inited", wait_for_names)
    app.connect("html-collect-pages", renew, priority=400)  # before viewcode
    app.connect("html-collect-pages", leave_out_unchanged, priority=450)
    app.connect("build-finished", put_back)
    app.connect("html-page-context", lead_back)
    app.connect("html-page-context", flatten)


def wait_for_names(app: Sphinx, config: object) -> None:
    """Listen to viewcode, on a site that uses it."""
    if EVENT in app.events.events:
        app.connect(EVENT, find_defining_module)


def renew(app: Sphinx) -> list[Any]:
    """Remove the pages if what stands around the source has changed: viewcode looks at the source's age alone."""
    builder: Any = app.builder
    around = (
        builder.build_info.config_hash,
        builder.templates.newest_template_mtime(),
        sorted(app.env.version.items()),
        sorted(where_described(app.env).items()),
    )
    made_with = hashlib.sha256(repr(around).encode()).hexdigest()
    note = Path(app.doctreedir, "source-pages.txt")
    if not note.exists() or note.read_text(encoding="utf-8") != made_with:
        shutil.rmtree(Path(app.outdir, FOLDER), ignore_errors=True)
        note.write_text(made_with, encoding="utf-8")
    return []


def leave_out_unchanged(app: Sphinx) -> list[Any]:
    """Take the modules whose pages are newer than their source off viewcode's list.

    Viewcode compares the two itself, but imports every module to learn where its source is, and PyTorch with them.
    """
    modules: dict[str, Any] | None = vars(app.env).get(MODULES)
    if modules is not None:
        vars(app)["gpuguide_viewcode_modules"] = modules
        kept = {name: not is_current(app, name) and entry for name, entry in modules.items()}
        vars(app.env)[MODULES] = kept  # those without an entry are listed, and not written again
    return []


def is_current(app: Sphinx, module: str) -> bool:
    """Return whether the page of a module of the library is newer than its source."""
    page = Path(app.outdir, FOLDER, f"{module.replace('.', '/')}.html")
    if module.partition(".")[0] != digest.PACKAGE_FOLDER.name or not page.exists():
        return False
    return digest.module_path(module).stat().st_mtime <= page.stat().st_mtime


def put_back(app: Sphinx, exception: Exception | None) -> None:
    """Give viewcode its whole list again, which the environment keeps."""
    if "gpuguide_viewcode_modules" in vars(app):
        vars(app.env)[MODULES] = vars(app)["gpuguide_viewcode_modules"]


def find_defining_module(app: Sphinx, module: str, name: str) -> str:
    """Return the module that defines a name, or the one under which it is described."""
    found = definition(f"{module}.{name}")
    return found.module if found else module


def lead_back(app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: object) -> None:
    """Let each definition lead to its own description."""
    if pagename.startswith(FOLDER) and "body" in context:
        module, described = pagename.removeprefix(FOLDER).replace("/", "."), where_described(app.env)

        def address(found: re.Match[str]) -> str:
            page, anchor = described.get(f"{module}.{found[2]}", ("", ""))
            if not page:  # described where no link leads, and so does viewcode's
                return found[0]
            return f'{found[1]}{app.builder.get_relative_uri(pagename, page)}#{anchor}"'

        context["body"] = _BACK.sub(address, context["body"])


def flatten(app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: object) -> None:
    """Make one list of all modules: viewcode puts lists directly into lists, which screen readers cannot follow."""
    if pagename == LIST:
        title, _, items = context["body"].partition("<ul>")
        context["body"] = f"{title}<ul>{re.sub('</?ul>', '', items)}</ul>"
