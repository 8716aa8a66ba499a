"""Descriptions of attributes as they were written.

Napoleon takes what stands before a colon in the first line of an attribute's description for its type, and puts it
behind the rest. Types are annotations here, and a colon is a colon.
By hand, because with numpydoc in Napoleon's place every parameter would be shown in another way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx

EVENT = "autodoc-process-docstring"
KINDS = ("attribute", "data", "property")


def connect(app: Sphinx) -> None:
    """Register this part with Sphinx."""
    app.connect("config-inited", wait_for_descriptions)


def wait_for_descriptions(app: Sphinx, config: object) -> None:
    """Listen to autodoc, on a site that uses it."""
    if EVENT in app.events.events:
        app.connect(EVENT, keep_whole, priority=400)  # before napoleon


def keep_whole(app: Sphinx, what: str, name: str, described: Any, options: object, lines: list[str]) -> None:
    """Begin an attribute's description with an empty comment, so that its text has no first line to take apart."""
    if what in KINDS and lines:
        lines[:0] = ["..", ""]
