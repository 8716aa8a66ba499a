"""A class that the API reference names shortly leads to the class that the source means.

Docstrings write ``settings : Settings``, and several modules may have a class of that name. Sphinx looks for the last
part of a name among all that are described, finds two, and warns. The module that defines the described thing can see
one of them, so the name becomes that one's full name when a page is read. A type of Python's own, such as ``bytes``,
would be found where a class of the library has a member of that name, so it gets its full name too.
"""

from __future__ import annotations

import ast
import builtins
from typing import TYPE_CHECKING

from docutils import nodes
from sphinx import addnodes

from gpuguide.site.search_and_links.code_names import definition

if TYPE_CHECKING:
    from sphinx.application import Sphinx


def connect(app: Sphinx) -> None:
    """Register this part with Sphinx."""
    app.connect("doctree-read", name_in_full)


def name_in_full(app: Sphinx, doctree: nodes.document) -> None:
    """Give every short name of a type its full one, within the description of a thing of the library."""
    for reference in doctree.findall(addnodes.pending_xref):
        target = str(reference.get("reftarget", ""))
        if (
            reference.get("refdomain") == "py"
            and target.isidentifier()
            and (described := find_described_name(reference))
        ):
            own = python_type(target) if reference.get("reftype") == "class" else None
            reference["reftarget"] = class_seen_from(described, target) or own or target


def find_described_name(node: nodes.Node) -> str | None:
    """Return the full name of the thing in whose description a node stands."""
    while (node := node.parent) is not None:
        if isinstance(node, (addnodes.desc_signature, addnodes.desc)):
            signature = node if isinstance(node, addnodes.desc_signature) else node[0]
            assert isinstance(signature, nodes.Element)
            return f"{signature['module']}.{signature['fullname']}" if signature.get("module") else None
    return None


def class_seen_from(described: str, name: str) -> str | None:
    """Return the full name of the class that the module of a described thing knows by a short name.

    >>> class_seen_from("gpuguide.inference.cost.decode_time", "Shape")
    'gpuguide.costs.memory.shape.Shape'
    """
    place = definition(described)
    found = definition(f"{place.module}.{name}") if place else None
    return found.name if found and isinstance(found.node, ast.ClassDef) else None


def python_type(name: str) -> str | None:
    """Return the full name of a type that every module knows without an import.

    >>> python_type("bytes"), python_type("sum")
    ('builtins.bytes', None)
    """
    return f"builtins.{name}" if isinstance(getattr(builtins, name, None), type) else None
