from __future__ import annotations

import pytest

from gpuguide.errors import GpuguideError
from gpuguide.hardware import capacities, datasheet, datasheet_ceilings

GOOD = """
[sources.s]
title = "A report"
url = "https://example.org"
publisher = "Somebody"
looked_at = "2026-11-22"

[card.c]
name = "C"
mib = 8192
source = "s"
"""


def test_every_card_has_a_name_of_its_own_or_is_in_the_data_sheet() -> None:
    for card in capacities.load_capacities().values():
        assert bool(card.name) is (card.id not in datasheet.load())
        assert card.source.is_verified


def test_a_driver_reports_about_what_is_printed() -> None:
    """Vendors count 10⁹ bytes, memory chips come in 2³⁰, and ECC and the driver keep a part."""
    for gpu in datasheet.load().values():
        share = datasheet_ceilings.load(gpu.id).capacity / gpu.figures["memory"].value
        assert 0.95 < share < 1.08


def test_there_are_cards_from_8_gb_up() -> None:
    sizes = sorted(card.bytes / 2**30 for card in capacities.load_capacities().values())
    assert sizes[0] < 8.1
    assert any(10 < size < 11 for size in sizes)
    assert any(size == 12 for size in sizes)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('source = "s"', 'source = "t"', "t.toml, card.c: There is no source named 't'"),
        ("mib = 8192", "", "t.toml, card.c has no memory; write mib or bytes"),
        ("mib = 8192", "mib = -1", "t.toml, card.c has no memory"),
        ("mib = 8192", "gib = 8", "t.toml, card.c: There is no key named 'gib'"),
        ("[card.c]", "[card.c", "t.toml is not valid TOML"),
    ],
)
def test_a_damaged_table_is_refused(old: str, new: str, says: str) -> None:
    assert capacities.parse(GOOD, "t.toml")["c"].bytes == 8 * 2**30
    with pytest.raises(GpuguideError) as error:
        capacities.parse(GOOD.replace(old, new), "t.toml")
    assert says in str(error.value)
