"""The picture and the address that a messenger or a network shows when somebody shares a page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuguide.site.pages.addresses import Addresses

if TYPE_CHECKING:
    from sphinx.application import Sphinx

FILE = "_static/preview.png"
SIZE = (1200, 630)
"""Pixels, in the shape that all networks show whole"""


def connect(app: Sphinx) -> None:
    """Register this part with Sphinx."""
    app.connect("html-page-context", add_addresses)


def add_addresses(app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: object) -> None:
    """Give the template the addresses that the tags need whole, where the site's address is known."""
    addresses = Addresses.from_config(app.config)
    if not addresses.base or doctree is None:
        return
    context["shared"] = {
        "page": addresses.page(app.builder.get_target_uri(pagename)),
        "picture": addresses.page(FILE),
        "width": SIZE[0],
        "height": SIZE[1],
        "text": "A roofline with measured points, and the words: how GPUs and language models really behave",
    }
