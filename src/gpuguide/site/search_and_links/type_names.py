"""A type of Python's own in the API reference is no member of the library that has its name.

Sphinx looks for the last part of a name among all that is described: ``bytes`` would lead to an attribute ``bytes``.
"""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING

from docutils import nodes
from sphinx import addnodes

if TYPE_CHECKING:
    from sphinx.application import Sphinx


def connect(app: Sphinx) -> None:
    """Register this part with Sphinx."""
    app.connect("doctree-read", name_builtin_types)


def name_builtin_types(app: Sphinx, doctree: nodes.document) -> None:
    """Give the name of every type that needs no import its module."""
    for reference in doctree.findall(addnodes.pending_xref):
        target = reference.get("reftarget", "")
        is_class = (reference.get("refdomain"), reference.get("reftype")) == ("py", "class")
        if is_class and isinstance(getattr(builtins, target, None), type):
            reference["reftarget"] = f"builtins.{target}"
