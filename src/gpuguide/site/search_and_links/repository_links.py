"""Links to edit a page and to report a problem with it, where the configuration says where the repository is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from gpuguide.site.pages.addresses import Addresses

if TYPE_CHECKING:
    from sphinx.application import Sphinx

BRANCH = "main"


def connect(app: Sphinx) -> None:
    """Register this part with Sphinx."""
    app.connect("html-page-context", add)


def add(app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: object) -> None:
    """Give the template the two addresses, on pages that have a source."""
    repository = Addresses.from_config(app.config).repository
    if repository and pagename in app.env.all_docs:
        path = Path(app.env.doc2path(pagename)).relative_to(app.srcdir).as_posix()
        context["edit_address"] = f"{repository}/edit/{BRANCH}/{quote(path)}"
        context["report_address"] = f"{repository}/issues/new?title={quote(f'On {path}: ')}"
