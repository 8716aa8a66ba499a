from __future__ import annotations

import pytest

from gpuguide.errors import GpuguideError
from gpuguide.hardware import datasheet, links

GOOD = """
[sources.s]
title = "A standard"
url = "https://example.org"
publisher = "Somebody"
looked_at = "2026-11-23"

[link.l]
name = "L"
family = "F"
joins = "host"
lanes = 16
links = 2
signalling = { value = 8e9, source = "s" }
coding = { carried = 128, of = 130, source = "s" }
per_link = { value = 7.877e9, source = "s" }
per_direction = { value = 15.754e9, source = "s" }
protocol = { carried = 256, of = 280, source = "s", note = "n" }
"""


@pytest.mark.parametrize(
    ("name", "rate"),
    [
        # Gigabytes a second as others write them: GT/s × lanes × coding ÷ 8, or Gbit/s ÷ 8.
        ("pcie-3-x16", 8 * 16 * 128 / 130 / 8),
        ("pcie-4-x16", 16 * 16 * 128 / 130 / 8),
        ("pcie-5-x16", 32 * 16 * 128 / 130 / 8),
        ("pcie-6-x16", 64 * 16 / 8),
        ("nvlink-3", 12 * 25),
        ("nvlink-4", 18 * 25),
        ("nvlink-5", 18 * 50),
        ("nvl72", 18 * 50),
        ("infiniband-hdr", 200 / 8),
        ("infiniband-ndr", 400 / 8),
        ("infiniband-xdr", 800 / 8),
        ("ethernet-100", 100 / 8),
        ("ethernet-200", 200 / 8),
        ("ethernet-400", 400 / 8),
        ("ethernet-800", 800 / 8),
        ("nvme-4-x4", 16 * 4 * 128 / 130 / 8),
    ],
)
def test_a_rate_is_that_of_one_direction(name: str, rate: float) -> None:
    assert links.get(name).per_direction.value == pytest.approx(rate * 1e9, rel=1e-4)


def test_wire_coding_and_protocol_are_told_apart() -> None:
    for link in links.load().values():
        rates = [rate for rate in (link.raw, link.per_direction.value, link.payload) if rate is not None]
        assert rates == sorted(rates, reverse=True), link.id
        assert (link.coding is None) or link.raw, f"{link.id}: a share of nothing"


def test_the_sum_of_both_directions_stands_in_its_own_figure_only() -> None:
    for link in links.load().values():
        if link.printed_total:
            assert link.printed_total.value == 2 * link.per_direction.value
    assert [link.id for link in links.load().values() if link.printed_total] == [
        "nvlink-3",
        "nvlink-4",
        "nvlink-5",
        "nvl72",
    ]


def test_the_table_agrees_with_the_data_sheets() -> None:
    sheets = datasheet.load()
    for name, gpu, key in (
        ("pcie-4-x16", "a100-sxm-80gb", "pcie_per_direction"),
        ("pcie-5-x16", "h200", "pcie_per_direction"),
        ("nvlink-3", "a100-sxm-80gb", "nvlink_per_direction"),
        ("nvlink-4", "h100-sxm", "nvlink_per_direction"),
        ("nvlink-5", "b200", "nvlink_per_direction"),
    ):
        assert links.get(name).per_direction.value == sheets[gpu].figures[key].value


def test_every_source_is_cited_and_the_lane_follows() -> None:
    cited = set()
    for link in links.load().values():
        figures = (link.signalling, link.coding, link.per_direction, link.per_link, link.protocol, link.printed_total)
        cited |= {figure.source for figure in figures if figure}
        assert link.joins in links.JOINS
    assert cited == set(links.sources())
    assert links.get("pcie-5-x16").per_lane == pytest.approx(32e9 * 128 / 130 / 8, rel=1e-4)
    assert links.get("s3-request").per_lane is links.get("s3-request").raw is links.get("s3-request").payload is None


def test_an_unknown_link_is_named_with_the_near_ones() -> None:
    with pytest.raises(GpuguideError, match=r"There is no link named 'pcie-5'. Did you mean pcie-5-x16"):
        links.get("pcie-5")


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('joins = "host"', 'joins = "moon"', "t.toml, link.l: There is no kind of ends named 'moon'"),
        ("per_direction = {", "per_second = {", "There is no key named 'per_second'"),
        ('per_direction = { value = 15.754e9, source = "s" }\n', "", "t.toml, link.l has no per_direction"),
        ("value = 15.754e9", "value = 31.5e9", "lanes × signalling × coding ÷ 8 is 1.57538e+10, not 3.15e+10"),
        ("value = 7.877e9", "value = 15.75e9", "links × per_link is 3.15e+10, not 1.5754e+10"),
        ("value = 8e9", "value = -8e9", "link.l, signalling: value is -8000000000.0; write a number above zero"),
        ("carried = 256, of = 280", "carried = 280, of = 256", "280 of 256 is more than all; swap them"),
        ("of = 130", "of = 0", "link.l, coding: of is 0; write a whole number above zero"),
        ("lanes = 16", "lanes = true", "lanes is True"),
        ('value = 8e9, source = "s"', 'value = 8e9, source = "t"', "There is no source named 't'"),
        ('{ value = 8e9, source = "s" }', "8e9", "link.l, signalling is 8000000000.0; write {"),
        ("[link.l]", "[link.l", "t.toml is not valid TOML"),
    ],
)
def test_a_damaged_table_is_refused(old: str, new: str, says: str) -> None:
    assert links.parse(GOOD, "t.toml").links["l"].payload == pytest.approx(15.754e9 * 256 / 280)
    assert old in GOOD
    with pytest.raises(GpuguideError) as error:
        links.parse(GOOD.replace(old, new, 1), "t.toml")
    assert says in str(error.value)


def test_a_table_without_links_is_refused() -> None:
    with pytest.raises(GpuguideError, match=r"t.toml has no \[link"):
        links.parse(GOOD.split("[link.l]")[0], "t.toml")
