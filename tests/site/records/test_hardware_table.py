"""How figures of the hardware table are written: counts are whole, and what nobody could look at says so."""

from __future__ import annotations

import dataclasses

import pytest
from docutils import nodes

from gpuguide.hardware import datasheet
from gpuguide.hardware.datasheet import Figure
from gpuguide.hardware.sources import NOT_VERIFIED, Source
from gpuguide.site.records import hardware_table

FIGURES = [(gpu.id, key, figure) for gpu in datasheet.load().values() for key, figure in gpu.figures.items()]


@pytest.mark.parametrize(
    ("key", "figure", "words"),
    [
        ("sms", Figure(40.0, "1", "paper"), "40"),
        ("memory", Figure(141e9, "B", "paper"), "141 GB"),
        ("memory_bandwidth", Figure(4.8e12, "B/s", "paper"), "4.80 TB/s"),
        ("l2", Figure(52_428_800, "B", "paper"), "50 MiB"),
    ],
)
def test_how_a_figure_is_written(key: str, figure: Figure, words: str) -> None:
    assert hardware_table.written(key, figure) == words


def test_no_count_of_multiprocessors_has_a_fraction() -> None:
    written = [hardware_table.written(key, figure) for _, key, figure in FIGURES if key == "sms"]
    assert written
    assert all(text.isdigit() for text in written)


@pytest.mark.parametrize(("gpu", "key", "figure"), FIGURES, ids=lambda part: part if isinstance(part, str) else "")
def test_a_figure_whose_source_nobody_opened_says_so_beside_it(gpu: str, key: str, figure: Figure) -> None:
    shown = "".join(node.astext() for node in hardware_table._value(key, figure, hardware_table.source_numbers()))
    assert (NOT_VERIFIED in shown) is not datasheet.sources()[figure.source].verified


def test_the_list_of_sources_says_what_was_looked_at_and_when() -> None:
    read = Source("paper", "A table", "https://example.org", "A dealer", "2026-11-22", "a copy")
    assert hardware_table.cited(read).astext() == "A table, A dealer (looked at on 2026-11-22; a copy)"
    assert isinstance(hardware_table.cited(read)[0], nodes.reference)
    unread = dataclasses.replace(read, looked_at=NOT_VERIFIED, note="")
    assert hardware_table.cited(unread).astext() == "A table, A dealer (not verified by us)"
