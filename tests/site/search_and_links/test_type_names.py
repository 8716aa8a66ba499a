"""Types of Python's own in the API reference."""

from __future__ import annotations

import pytest
from docutils import nodes
from sphinx import addnodes

from gpuguide.site.search_and_links.type_names import name_builtin_types


@pytest.mark.parametrize(
    ("target", "kind", "full"),
    [
        ("bytes", "class", "builtins.bytes"),  # a type, though classes of the library have an attribute of that name
        ("bytes", "attr", "bytes"),
        ("sum", "class", "sum"),  # no type
        ("SamplingSettings", "class", "SamplingSettings"),
    ],
)
def test_a_type_of_pythons_own_is_no_member_of_the_library(target: str, kind: str, full: str) -> None:
    named = addnodes.pending_xref(refdomain="py", reftype=kind, reftarget=target, refspecific=True)
    document = nodes.document(None, None)  # type: ignore[arg-type]
    document += nodes.paragraph("", "", named)
    name_builtin_types(None, document)  # type: ignore[arg-type]
    assert named["reftarget"] == full
