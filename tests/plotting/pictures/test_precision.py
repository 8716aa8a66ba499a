"""Drawings of number formats: what they show is what PyTorch says of its types, and what rounding does."""

from __future__ import annotations

import math

import pytest
import torch
from figure_rows import rows_of

from gpuguide.plotting.pictures import precision as pictures
from gpuguide.precision import FORMATS, round_to


def test_the_formats_are_those_of_the_library() -> None:
    names = ("exponent_bits", "mantissa_bits", "largest", "smallest_normal", "smallest_subnormal", "largest_exponent")
    assert list(pictures.LAYOUTS) == list(FORMATS)
    for name, layout in pictures.LAYOUTS.items():
        assert [getattr(layout, each) for each in names] == [getattr(FORMATS[name], each) for each in names]


def test_ranges_are_pytorchs() -> None:
    rows = {row["format"]: row for row in rows_of(pictures.formats_to_scale())}
    assert list(rows) == list(FORMATS)
    for name, each in FORMATS.items():
        assert sum(int(rows[name][field]) for field in ("sign_bits", "exponent_bits", "mantissa_bits")) == each.bits
        if each.dtype is not None:
            known = torch.finfo(each.dtype)
            assert float(rows[name]["largest"]) == pytest.approx(known.max, rel=1e-5)
            assert float(rows[name]["smallest_normal"]) == pytest.approx(known.smallest_normal, rel=1e-5)


def test_every_format_lies_on_the_line() -> None:
    for each in FORMATS.values():
        assert math.log2(each.smallest_subnormal) >= pictures.LOWEST
        assert math.log2(each.largest) < pictures.HIGHEST


@pytest.mark.parametrize("name", pictures.SKYLINE)
def test_significant_bits_are_what_rounding_keeps(name: str) -> None:
    """With n bits, all numbers of n bits of a magnitude stay what they are, and one of n + 1 bits does not."""
    rows = rows_of(pictures.bits_by_magnitude())
    for row in rows:
        bits, start = int(row[f"{name}_bits"]), 2.0 ** int(row["power_of_two"])
        if not bits:
            assert float(round_to(1.001 * start, name)) in {0.0, 2 * start, math.inf} or start > FORMATS[name].largest
            continue
        held = start * (1 + 2.0 ** (1 - bits)) if bits > 1 else start
        assert float(round_to(held, name)) == held
        if held < FORMATS[name].largest:
            finer = start * (1 + 2.0**-bits)
            assert float(round_to(finer, name)) != finer


def test_the_marked_numbers_are_lost_kept_and_saved() -> None:
    assert float(round_to(pictures.SMALL, "fp16")) == pytest.approx(pictures.SMALL, rel=0.01)
    assert float(round_to(pictures.TINY, "fp16")) == 0
    saved = pictures.TINY * pictures.SCALE
    assert pictures.significant_bits(pictures.LAYOUTS["fp16"], math.floor(math.log2(saved))) == 11
    assert float(round_to(saved, "fp16")) == pytest.approx(saved, rel=2.0**-11)
