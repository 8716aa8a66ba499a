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


BOX = "## In short\n\nThe answer.\n\n"


def minutes(body: str) -> tuple[int, int]:
    """Return the minutes for the answer and for all of a page with a box."""
    found = reading.measure_reading(HEAD + BOX + body)
    return found.minutes_for_answer, found.minutes


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("", (1, 1)),
        ("word " * (130 - 12), (1, 1)),  # with the head of 8 words and the box of 4
        ("word " * (131 - 12), (2, 2)),
        ("| a | b |\n|---|---|\n" + "| word | word |\n" * 100, (3, 3)),
        (cell("x = 1\n" * 100), (4, 4)),
        (cell("plotting.show(draw, alt='a', caption='b')", "hide-input"), (2, 2)),
        (cell("plotting.show_table(header, rows)", "hide-input"), (2, 2)),
        ("```{claims} ceilings\n:show: a b c\n```", (2, 2)),
        (cell("x = 1\n" * 100, "hide-input"), (1, 1)),
        ("## Explain: why\n\n" + "word " * 128, (1, 2)),
        ("## Explain: why\n\n:::{symptom} It is slow\n1. " + "word " * 128 + "→ do it.\n:::", (2, 2)),
        ("## In your own code\n\n" + "word " * 128, (2, 2)),
        (":::{folded} More\n" + "word " * 260 + "\n:::", (1, 3)),
        (":::{question}\nWhy?\n\n" + "word " * 260 + "\n:::", (1, 3)),
        (":::{folded} More\n```python\n" + "x = 1\n" * 100 + "```\n:::", (1, 4)),
        ("## Exercises\n\n" + "word " * 1000 + "\n\n| a |\n|---|\n" + "| word |\n" * 100, (1, 1)),
        ("## Explain\n\n" + "word " * 2600, (1, 25)),  # 20.1 minutes: known no better than to five
    ],
)
def test_minutes_are_those_of_text_code_tables_and_figures(body: str, expected: tuple[int, int]) -> None:
    assert minutes(body) == expected


def test_both_times_are_said_where_there_is_an_answer() -> None:
    found = reading.measure_reading(HEAD + BOX + "## Explain\n\n" + "word " * 2600)
    assert found.describe() == "1 min for the answer, 25 min for all"
    assert found.describe_briefly() == "1 min, 25 min for all"
    plain = reading.measure_reading(HEAD + "word " * 300)
    assert (plain.describe(), plain.describe_briefly()) == ("3 min to read", "3 min")


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
    interactive = {"limits_to_try", "map_to_try", "rank_to_try", "roofline_to_try", "sampling_to_try"}
    assert set(reading.list_drawing_calls("interactive")) == interactive


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
