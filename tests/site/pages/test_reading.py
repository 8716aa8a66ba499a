"""How long a page takes to read: what is counted, and what is not."""

from __future__ import annotations

import pytest
from figure_rows import drawings
from small_site import FRONT, cell

from gpuguide.site.pages import reading

HEAD = FRONT.format(benchmarks="") + "\n# A title\n\nYou will read this one sentence.\n\n"


def words(body: str) -> int:
    """Return the words of a page beyond its title and first sentence."""
    return reading.measure_reading(HEAD + body).words - 8


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("Three more words.", 3),
        ("It takes {measured}`ceilings/launch:time` to start.", 6),  # a number and its unit
        ("It is {holds}`far too slow | 1 > 0` here.", 6),
        ("The product $2mnk$ of `torch.mm` counts.", 6),
        ("| a | b |\n|---|---|\n| one | two |", 0),
        (":::{folded} Two words\nNot seen until it is opened.\n:::", 2),
        (":::{question}\nWhy is that?\n\nBecause of this and that.\n:::", 3),
        (":::{takeaway}\nThree words count.\n:::", 3),
        (":::{note}\nThree words count.\n:::", 3),
        ("```{claims}\none-claim\nanother-claim\n```", 0),
        ("## Exercises\n\n**1. One.** Do this.", 0),
        ("## Further reading\n\n- A paper.", 0),
        ("% a note to the author", 0),
        (cell("print('words of code are no words')"), 0),
    ],
)
def test_words_that_are_seen(body: str, expected: int) -> None:
    assert words(body) == expected


def test_code_is_counted_where_it_is_seen() -> None:
    seen = cell("a = 1\n\nb = 2") + cell("c = 3", "hide-input") + cell("d = 4", "remove-cell")
    assert reading.measure_reading(HEAD + seen + "\n```python\nprint(a)\n```\n").code_lines == 3


def test_minutes_are_those_of_words_and_code() -> None:
    assert reading.measure_reading(HEAD).minutes == 1
    body = "word " * 992 + "\n\n" + cell("\n".join(f"x = {n}" for n in range(12)))
    assert reading.measure_reading(HEAD + body).minutes == 6, "1000 words are five, and twelve lines of code one"


def test_sections_and_what_there_is_to_look_at() -> None:
    drawn = cell("plotting.show(draw, alt='a', caption='b')", "hide-input")
    body = f"## First\n\nOne two.\n\n{drawn}\n## Second\n\n$$\nx\n$$\n\n{cell('show_table(header, rows)')}"
    found = reading.measure_reading(HEAD + body)
    assert found.count_by_section() == {"": 8, "First": 3, "Second": 1}
    assert [(part.section, part.shown) for part in found.parts if part.shown] == [
        ("First", "figure"),
        ("Second", "formula"),
        ("Second", "table"),
    ]
    lines = (HEAD + body).splitlines()
    assert all(lines[part.line - 1].startswith(("```", "$$")) for part in found.parts if part.shown)


def test_drawings_are_the_calls_that_give_a_figure() -> None:
    assert set(reading.list_drawing_calls()) == set(drawings())
    assert set(reading.list_drawing_calls("interactive")) == {"rank_to_try", "roofline_to_try", "sampling_to_try"}


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("pictures.choosing.mask_tiles()", "drawing"),
        ("pictures.sampling.two_kernels()", "drawing"),
        ("plotting.roofline_to_try()", "figure"),
        ("rules()", ""),  # public functions of the drawings' modules, which draw nothing
        ("visible(token)", ""),
    ],
)
def test_what_a_call_shows(code: str, expected: str) -> None:
    assert reading.thing_to_look_at(code) == expected
