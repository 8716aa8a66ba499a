"""Links to edit a page and to report a problem with it, where the configuration says where the repository is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from sphinx.errors import ConfigError

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.config import Config

BRANCH = "main"


def connect(app: Sphinx) -> None:
    """Register this part with Sphinx."""
    app.add_config_value("gpuguide_repository", "", "html", str)
    app.connect("config-inited", check)
    app.connect("html-page-context", add)


def check(app: Sphinx, config: Config) -> None:
    """Stop the build if the repository's address is not one that links can be made of."""
    given = urlsplit(config.gpuguide_repository)
    if config.gpuguide_repository and not (given.scheme == "https" and given.path.strip("/").count("/") == 1):
        raise ConfigError(
            f"gpuguide_repository (from GPUGUIDE_REPOSITORY) is {config.gpuguide_repository!r}; "
            "write https://github.com/OWNER/NAME, or nothing."
        )


def add(app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: object) -> None:
    """Give the template the two addresses, on pages that have a source."""
    repository = app.config.gpuguide_repository.rstrip("/")
    if repository and pagename in app.env.all_docs:
        path = Path(app.env.doc2path(pagename)).relative_to(app.srcdir).as_posix()
        context["edit_address"] = f"{repository}/edit/{BRANCH}/{quote(path)}"
        context["report_address"] = f"{repository}/issues/new?title={quote(f'On {path}: ')}"
