"""Where the site and its repository are, as far as the configuration says, and the links that follow from it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urljoin, urlsplit

from sphinx.errors import ConfigError

import gpuguide

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.config import Config

FOLDER = "notebooks"
"""The folder of the site that holds the downloads"""
WHEEL = f"gpuguide-{gpuguide.__version__}-py3-none-any.whl"
"""The file of the library there"""
BRANCH = "gh-pages"
"""The branch of the repository that holds the built site"""


def connect(app: Sphinx) -> None:
    """Register this part with Sphinx."""
    app.add_config_value("gpuguide_repository", "", "html", str)
    app.connect("config-inited", check)


def check(app: Sphinx, config: Config) -> None:
    """Refuse addresses from which no link could be made."""
    if config.html_baseurl and not re.fullmatch(r"https?://[^/\s]+(/\S*)?", config.html_baseurl):
        raise ConfigError(f"html_baseurl is {config.html_baseurl!r}; write https://HOST/FOLDER/, or nothing.")
    given = config.gpuguide_repository
    if given and not re.fullmatch(r"https://[^/\s]+/[^/\s]+/[^/\s]+/?", given):
        raise ConfigError(f"gpuguide_repository is {given!r}; write https://HOST/OWNER/NAME, or nothing.")


@dataclass(frozen=True)
class Addresses:
    """The two addresses, each of which may be unknown."""

    base: str
    """Address of the site's root, ending in a slash, or nothing"""
    repository: str
    """Address of the repository, without a slash, or nothing"""

    @classmethod
    def from_config(cls, config: Config) -> Addresses:
        """Return what is configured."""
        base = config.html_baseurl
        return cls(base and base.rstrip("/") + "/", config.gpuguide_repository.rstrip("/"))

    def page(self, uri: str) -> str | None:
        """Return the address of a page, from its address within the site."""
        return urljoin(self.base, uri) if self.base else None

    def wheel(self) -> str | None:
        """Return where the wheel can be fetched: from the site, else from the branch that holds it."""
        place = f"{FOLDER}/{WHEEL}"
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
