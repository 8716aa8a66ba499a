"""Tests of how a figure is shown: which part of its caption is the title."""

import pytest

from gpuguide.site.directives.figures import caption_node


@pytest.mark.parametrize(
    ("caption", "title"),
    [
        ("Readings lag behind the work. Shaded: matmuls.", "Readings lag behind the work."),
        ("Prefill of Llama 2 7B. Dotted: the bound.", "Prefill of Llama 2 7B."),
        ("A group-by in cuDF. The hash leads to a slot.", "A group-by in cuDF."),
        ("A batch reached its limit. 256 sequences took longer.", "A batch reached its limit."),
        ("A run by J. Doe. It ends early.", "A run by J. Doe."),
        ("No second sentence", "No second sentence"),
    ],
)
def test_the_first_sentence_of_a_caption_is_its_title(caption: str, title: str) -> None:
    shown = caption_node(caption)
    assert shown[0].astext() == title
    assert shown.astext() == caption
