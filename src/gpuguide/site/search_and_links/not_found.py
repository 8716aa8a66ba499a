"""The page that a web server sends for an address that leads nowhere.

It is sent at whatever depth was asked for, so it loads nothing, and its links begin at the root of the site's host.
By hand, because the page that sphinx-notfound-page makes is bare where the site's address is not known: it loads the
theme's styles and scripts from there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from gpuguide.site.search_and_links import navigation

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.config import Config

PAGE = "404"


def connect(app: Sphinx) -> None:
    """Register this part with Sphinx."""
    app.connect("config-inited", add_page)
    app.connect("html-page-context", fill_in)


def add_page(app: Sphinx, config: Config) -> None:
    """Let Sphinx write the page from our template."""
    config.html_additional_pages = {**config.html_additional_pages, PAGE: f"{PAGE}.html"}


def root_of(base_url: str) -> str:
    """Return the path of the site on its host.

    >>> root_of("https://example.org/gpuguide"), root_of("")
    ('/gpuguide/', '/')
    """
    return urlsplit(base_url).path.rstrip("/") + "/"


def fill_in(app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: object) -> None:
    """Tell the template where the site begins, and which sections it has."""
    if pagename != PAGE:
        return
    root = root_of(app.config.html_baseurl)
    context["site_root"] = root
    context["sections"] = [
        (root + app.builder.get_target_uri(page) + mark + anchor, title)
        for title, (page, mark, anchor) in navigation.sections_there_are(app.env).items()
    ]
