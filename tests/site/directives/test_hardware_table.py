"""The cards of GPUs: counts are whole, notes are text, and what nobody could look at says so beside the figure."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from bs4 import BeautifulSoup
from docutils import nodes

from gpuguide.hardware import datasheet
from gpuguide.hardware.sources import NOT_VERIFIED, PrintedValue, Source
from gpuguide.site.directives import hardware_table

SITE = Path(__file__).parents[3] / "_build" / "html"
FIGURES = [(gpu.id, key, figure) for gpu in datasheet.load().values() for key, figure in gpu.figures.items()]


@pytest.mark.parametrize(
    ("key", "figure", "words"),
    [
        ("sms", PrintedValue(40.0, "1", "paper"), "40"),
        ("memory", PrintedValue(141e9, "B", "paper"), "141 GB"),
        ("memory_bandwidth", PrintedValue(4.8e12, "B/s", "paper"), "4.80 TB/s"),
        ("l2", PrintedValue(52_428_800, "B", "paper"), "50 MiB"),
    ],
)
def test_how_a_figure_is_written(key: str, figure: PrintedValue, words: str) -> None:
    assert hardware_table.format_figure(key, figure) == words


def test_no_count_of_multiprocessors_has_a_fraction() -> None:
    written = [hardware_table.format_figure(key, figure) for _, key, figure in FIGURES if key == "sms"]
    assert written
    assert all(text.isdigit() for text in written)


@pytest.mark.parametrize(("gpu", "key", "figure"), FIGURES, ids=lambda part: part if isinstance(part, str) else "")
def test_a_figure_whose_source_nobody_opened_says_so_beside_it(gpu: str, key: str, figure: PrintedValue) -> None:
    shown = "".join(node.astext() for node in hardware_table._value(key, figure, hardware_table.source_numbers()))
    assert (NOT_VERIFIED in shown) is not datasheet.sources()[figure.source].is_verified


def test_the_list_of_sources_says_what_was_looked_at_and_when() -> None:
    read = Source("paper", "A table", "https://example.org", "A dealer", "2026-11-22", "a copy")
    assert hardware_table.cite(read).astext() == "A table, A dealer (looked at on 2026-11-22; a copy)"
    assert isinstance(hardware_table.cite(read)[0], nodes.reference)
    unread = dataclasses.replace(read, looked_at=NOT_VERIFIED, note="")
    assert hardware_table.cite(unread).astext() == "A table, A dealer (not verified by us)"


@pytest.mark.parametrize("gpu", datasheet.load().values(), ids=lambda gpu: gpu.id)
def test_a_card_has_every_figure_of_its_gpu_with_its_note(gpu: datasheet.Gpu) -> None:
    card = hardware_table.card(gpu, [])
    assert card["ids"] == [hardware_table.anchor(gpu)]
    shown = card.astext()
    for key, figure in gpu.figures.items():
        assert hardware_table.format_figure(key, figure) in shown
        assert figure.note in shown
    assert len(list(card.findall(nodes.reference))) == len(gpu.figures), "a source each"
    assert not list(card.findall(nodes.abbreviation)), "nothing that only a mouse reaches"


@pytest.mark.skipif(not (SITE / "index.html").is_file(), reason="the site is not built; run `make site`")
def test_the_page_of_the_built_site_has_a_card_for_each_gpu_and_says_which_were_measured() -> None:
    page = BeautifulSoup((SITE / "docs" / "hardware.html").read_text(encoding="utf-8"), "html.parser")
    cards = {str(card["id"]): card for card in page.select("section.gg-card")}
    lines = {str(row.a["href"])[1:]: row for row in page.select("table.gg-datasheet tbody tr") if row.a}
    assert {*cards} == {*lines} == {hardware_table.anchor(gpu) for gpu in datasheet.load().values()}
    for name, card in cards.items():
        measured = card.select_one("[id^=measured-]") is not None
        assert bool(lines[name].select(".gg-note")) is measured
        assert bool(card.select("p.gg-stamp")) is measured
    assert any(card.select("[id^=measured-]") for card in cards.values())
    assert not page.select("article [title]:not(a)"), "nothing that only a mouse reaches"


def test_a_column_of_the_overview_has_one_unit_and_the_larger_number_is_the_larger_figure() -> None:
    for key in hardware_table.OVERVIEW:
        figures = [gpu.figures[key] for gpu in datasheet.load().values() if key in gpu.figures]
        numbers = [float(hardware_table.format_in_column(each.value, each.unit).replace(",", "")) for each in figures]
        values = [each.value for each in figures]
        assert sorted(range(len(values)), key=values.__getitem__) == sorted(range(len(values)), key=numbers.__getitem__)


@pytest.mark.skipif(not (SITE / "index.html").is_file(), reason="the site is not built; run `make site`")
def test_the_newest_gpu_stands_first_and_numbers_stand_at_the_right() -> None:
    page = BeautifulSoup((SITE / "docs" / "hardware.html").read_text(encoding="utf-8"), "html.parser")
    rows = page.select("table.gg-datasheet tbody tr")
    architectures = {gpu.name: gpu.architecture for gpu in datasheet.load().values()}
    shown = [architectures[row.select_one("td").text.strip()] for row in rows]
    assert (shown[0], shown[-1]) == ("Blackwell", "Volta")
    assert all("gg-right" in cell["class"] for row in rows for cell in row.select("td")[1:])


@pytest.mark.skipif(not (SITE / "index.html").is_file(), reason="the site is not built; run `make site`")
def test_a_figure_in_a_sentence_leads_to_its_gpu() -> None:
    text = (SITE / "docs" / "glossary.html").read_text(encoding="utf-8")
    figures = BeautifulSoup(text, "html.parser").select("a.gg-number[title^='From a data sheet']")
    assert figures
    assert {str(figure["href"]).partition("#")[0] for figure in figures} == {"hardware.html"}
