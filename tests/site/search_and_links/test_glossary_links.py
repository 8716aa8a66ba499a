"""First uses of terms, on pages made of nodes."""

from __future__ import annotations

import pytest
from docutils import nodes
from docutils.core import publish_doctree

from gpuguide.site.search_and_links.glossary_links import Term, add_links, first_sentence

TERMS = [
    Term("t-sm", ("SM", "multiprocessor"), "", "A processor of a GPU."),
    Term("t-token", ("token",), "", "A piece of text."),
    Term("t-tokenizer", ("tokenizer",), "", "What cuts text."),
    Term("t-kv", ("KV cache",), "", "Keys and values."),
    Term("t-bf16", ("bf16",), "", "A number format."),
    Term("t-event", ("event",), "CUDA", "A mark in a stream."),
    Term("t-batch", ("batch",), "", "What goes through together."),
]


def linked(text: str) -> list[tuple[str, str]]:
    """Return what is linked in a page, as the text and the term."""
    doctree = publish_doctree(text)
    before = doctree.astext()
    add_links(doctree, TERMS, "../docs/glossary.html")
    assert doctree.astext() == before, "links change no text"
    found = [node for node in doctree.findall(nodes.reference) if "gg-term" in node["classes"]]
    assert all(node["refuri"].startswith("../docs/glossary.html#") for node in found)
    return [(node.astext(), node["refuri"].partition("#")[2]) for node in found]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A token and a token.", [("token", "t-token")]),
        ("Tokens, then the tokenizer.", [("Tokens", "t-token"), ("tokenizer", "t-tokenizer")]),
        ("Two batches.", [("batches", "t-batch")]),
        ("Small sm, tall SMs.", [("SMs", "t-sm")]),
        ("A multiprocessor is an SM.", [("multiprocessor", "t-sm")]),
        ("In BF16 as in bf16.", [("BF16", "t-bf16")]),
        ("The KV cache, not a kv cache.", [("KV cache", "t-kv")]),
        ("A sub-token, a token-wise thing, tokenise.", []),
        ("In any event.", []),
        ("An event, as CUDA has them.", [("event", "t-event")]),
        ("``token``, `token <https://example.org>`_ and a |x|\n\n.. |x| image:: token.png", []),
        ("token\n=====\n\nThe token.", [("token", "t-token")]),
        ("::\n\n  token\n\n.. figure:: a.png\n\n   A token.\n", []),
        ("- *A* token\n- a **batch**", [("token", "t-token"), ("batch", "t-batch")]),
    ],
)
def test_the_first_use_in_running_text_is_linked(text: str, expected: list[tuple[str, str]]) -> None:
    assert linked(text) == expected


def test_a_heading_keeps_no_link() -> None:
    doctree = publish_doctree("The token\n=========\n\nA token.\n\nMore\n----\n\nThe end.")
    add_links(doctree, TERMS, "glossary.html")
    assert not [title for title in doctree.findall(nodes.title) if list(title.findall(nodes.reference))]


def test_a_term_says_what_it_means_when_one_points_at_it() -> None:
    doctree = publish_doctree("A token.")
    add_links(doctree, TERMS, "glossary.html")
    (found,) = doctree.findall(nodes.reference)
    assert found["reftitle"] == "A piece of text."
    assert first_sentence("Half of it, e.g. 1.5. And more. Much more.") == "Half of it, e.g. 1.5."
