"""Formats against torch.finfo, and every conversion against PyTorch's own, bit by bit."""

from __future__ import annotations

import itertools
import math
import struct

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpuguide.precision import (
    BLOCK_FORMATS,
    FORMATS,
    decode,
    encode,
    format_by_name,
    numbers,
    quantize_blocks,
    round_to,
)
from gpuguide.precision.formats import E2M1, E4M3, FP16, FP32, FloatFormat
from gpuguide.precision.rounding import round_stochastically, spacing

WITH_TYPE = [each for each in FORMATS.values() if each.dtype is not None]
SMALL = [each for each in WITH_TYPE if each.bits <= 16]
each_small = pytest.mark.parametrize("format", SMALL, ids=[each.name for each in SMALL])
INTEGERS = {8: torch.uint8, 16: torch.int16}
SATURATES = bool(torch.tensor(1e9).to(torch.float8_e4m3fn).float().isfinite())
"""Whether this PyTorch turns what is too large for e4m3 into 448; older ones made it NaN"""
WIDE_NAN = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0])


def codes_of(values: torch.Tensor) -> torch.Tensor:
    """Return the codes that PyTorch keeps, from 0."""
    bits = 8 * values.element_size()
    return values.view(INTEGERS[bits]).long() % 2**bits


def same(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    """Equal with the sign of zero, NaN for NaN."""
    ours, theirs = ours.double(), theirs.double()
    equal = (ours == theirs) & (ours.signbit() == theirs.signbit())
    return bool((equal | (ours.isnan() & theirs.isnan())).all())


def as_pytorch(format: FloatFormat) -> bool:
    """Whether PyTorch saturates in a format."""
    return format is E4M3 and SATURATES


def every(format: str) -> torch.Tensor:
    """All values of a small format, as PyTorch reads them."""
    wanted = format_by_name(format)
    assert wanted.dtype is not None
    codes = torch.arange(2**wanted.bits)
    signed = codes.to(torch.int16) if wanted.bits == 16 else codes.to(torch.uint8)
    return signed.view(wanted.dtype)


@pytest.mark.parametrize("format", WITH_TYPE, ids=lambda each: each.name)
def test_formats_equal_finfo(format: FloatFormat) -> None:
    assert format.dtype is not None
    info = torch.finfo(format.dtype)
    assert format.largest == info.max
    assert format.smallest_normal == info.tiny == info.smallest_normal
    assert format.epsilon == info.eps
    assert format.stored_bits == format.bits == info.bits


def test_smallest_subnormal_is_the_next_number_after_zero() -> None:
    assert np.nextafter(np.float16(0), np.float16(1)) == FP16.smallest_subnormal
    assert np.nextafter(np.float32(0), np.float32(1)) == FP32.smallest_subnormal
    for format in SMALL:
        positive = every(format.name).float()
        assert float(positive[positive > 0].min()) == format.smallest_subnormal


def test_tf32_has_the_range_of_fp32_and_the_precision_of_fp16() -> None:
    tf32 = format_by_name("tf32")
    assert (tf32.bits, tf32.stored_bits, tf32.dtype) == (19, 32, None)
    assert tf32.smallest_normal == FP32.smallest_normal
    assert tf32.epsilon == FP16.epsilon
    assert tf32.largest == struct.unpack("f", struct.pack("I", 0x7F7FE000))[0]


def test_e2m1_holds_fifteen_numbers() -> None:
    positive = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    assert numbers("e2m1").tolist() == sorted({*positive, *(-each for each in positive)})
    assert (E2M1.largest, E2M1.smallest_normal, E2M1.smallest_subnormal, E2M1.epsilon) == (6, 1, 0.5, 0.5)


@each_small
def test_all_codes_are_decoded_as_pytorch_does(format: FloatFormat) -> None:
    codes = torch.arange(2**format.bits)
    assert same(decode(codes, format), every(format.name).float())


@each_small
def test_fields_give_the_values(format: FloatFormat) -> None:
    for code in range(0, 2**format.bits, 1 if format.bits == 8 else 37):
        parts = format.parts(code)
        assert int(parts.bits.replace(" ", ""), 2) == code
        assert same(torch.tensor(parts.value).double(), decode(torch.tensor(code), format))
        kinds = {"nan": math.isnan(parts.value), "infinity": math.isinf(parts.value), "zero": parts.value == 0}
        assert kinds.get(parts.kind, not any(kinds.values()))
        assert (parts.kind == "subnormal") == (0 < abs(parts.value) < format.smallest_normal)


@each_small
def test_all_values_round_to_themselves_and_get_their_codes(format: FloatFormat) -> None:
    values = every(format.name)
    assert same(round_to(values, format), values.float())
    numbers_only = ~values.float().isnan()
    assert torch.equal(encode(values, format)[numbers_only], codes_of(values)[numbers_only])


@each_small
def test_rounding_equals_pytorchs_at_and_beside_every_midpoint(format: FloatFormat) -> None:
    exact = numbers(format)
    midpoints = ((exact[1:] + exact[:-1]) / 2).float()
    beyond = torch.tensor([format.largest, format.overflow_from, 2 * format.largest]).float()
    points = torch.cat([midpoints, beyond, -beyond, WIDE_NAN])
    up, down = torch.full_like(points, torch.inf), torch.full_like(points, -torch.inf)
    for x in (points, points.nextafter(up), points.nextafter(down)):
        theirs = x.to(format.dtype)
        assert same(round_to(x, format, saturate=as_pytorch(format)), theirs.float())
        known = ~theirs.float().isnan()
        ours = encode(x, format, saturate=as_pytorch(format))
        assert torch.equal(ours[known], codes_of(theirs)[known])


@each_small
def test_rounding_equals_pytorchs_on_random_bits(format: FloatFormat) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(-(2**31), 2**31, (200_000,), generator=generator).to(torch.int32).view(torch.float32)
    assert same(round_to(x, format, saturate=as_pytorch(format)), x.to(format.dtype).float())


def test_rounding_between_formats_equals_pytorchs() -> None:
    for one, other in itertools.permutations(SMALL, 2):
        values = every(one.name)
        ours = round_to(values, other, saturate=as_pytorch(other))
        assert same(ours, values.to(other.dtype).float()), (one, other)


def test_rounding_fp64_to_fp32_equals_numpys() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal(10_000) * 2.0 ** rng.integers(-160, 130, 10_000)
    with np.errstate(over="ignore"):
        theirs = x.astype(np.float32)
    assert same(round_to(torch.from_numpy(x), "fp32"), torch.from_numpy(theirs))


def test_tf32_keeps_ten_bits_of_the_mantissa() -> None:
    x = torch.randn(10_000, generator=torch.Generator().manual_seed(0))
    bits = x.view(torch.int32)
    nearest_even = (bits + 0xFFF + ((bits >> 13) & 1)) & ~0x1FFF
    assert torch.equal(round_to(x, "tf32"), nearest_even.view(torch.float32))


@given(st.floats(-8, 8))
def test_e2m1_is_the_nearest_of_its_numbers(x: float) -> None:
    held = numbers("e2m1")
    distance = (held - x).abs()
    nearest = held[distance == distance.min()]
    rounded = float(round_to(torch.tensor(x, dtype=torch.float64), "e2m1"))
    assert rounded in nearest.tolist()
    if len(nearest) == 2:
        assert E2M1.parts(int(encode(rounded, E2M1))).mantissa == 0


def test_dead_zone_and_overflow_begin_where_pytorchs_do() -> None:
    for format in SMALL:
        edge = torch.tensor(format.zero_up_to, dtype=torch.float32)
        assert float(edge.to(format.dtype)) == 0
        assert float(edge.nextafter(torch.tensor(1.0)).to(format.dtype)) == format.smallest_subnormal
        over = torch.tensor(format.overflow_from)
        assert not round_to(over, format).isfinite()
        assert bool(over.to(format.dtype).float().isfinite()) == as_pytorch(format)
        assert float(over.nextafter(torch.tensor(0.0)).to(format.dtype)) == format.largest
    assert float(round_to(1e-5, "fp16")) == pytest.approx(1.0014e-5, rel=1e-4)
    assert float(round_to(1e-8, "fp16")) == 0


@each_small
def test_spacing_is_the_distance_to_the_next_number(format: FloatFormat) -> None:
    held = numbers(format, 0)
    assert torch.equal(spacing(held[:-1], format), held.diff())
    assert [format.spacing(float(x)) for x in held[:-1:53]] == held.diff()[::53].tolist()
    assert format.spacing(-1.0) == format.epsilon
    assert format.spacing(format.largest) == float(held.diff()[-1])
    with pytest.raises(ValueError, match="its largest is"):
        format.spacing(math.inf)


def test_numbers_of_a_range_have_their_ends() -> None:
    assert numbers("e4m3", 1, 2).tolist() == [1 + each / 8 for each in range(9)]
    assert len(numbers("bf16")) == 2 * (2**15 - 2**7) - 1
    with pytest.raises(ValueError, match=r"2\^32 codes"):
        numbers("fp32")


def test_saturation_keeps_the_largest() -> None:
    x = torch.tensor([1e9, -1e9, math.inf, math.nan])
    assert round_to(x, "e4m3", saturate=True)[:3].tolist() == [448, -448, 448]
    assert round_to(x, "e4m3").isnan().all()
    assert round_to(x, "e5m2")[:3].tolist() == [math.inf, -math.inf, math.inf]
    assert round_to(x[:3], "e2m1").tolist() == [6, -6, 6]
    with pytest.raises(ValueError, match="e2m1 has no NaN, and 1 of 4"):
        round_to(x, "e2m1")


def test_stochastic_rounding_is_right_on_average() -> None:
    generator = torch.Generator().manual_seed(1)
    for format, x in itertools.product(("bf16", "e4m3", "e5m2"), (1.03, -1.03, 3e-3, 0.0)):
        draws = round_stochastically(torch.full((40_000,), x), format, generator).double()
        step = format_by_name(format).spacing(x)
        assert draws.unique().numel() <= 2
        assert abs(float(draws.mean()) - float(torch.tensor(x))) < 4 * step / math.sqrt(40_000)
    assert round_stochastically(torch.tensor([math.inf, 1e9]), "e4m3").tolist() == [math.inf, 448]


def test_numbers_of_the_format_stay_under_stochastic_rounding() -> None:
    held = numbers("bf16")
    assert torch.equal(round_stochastically(held, "bf16"), held)


@pytest.mark.parametrize("name", BLOCK_FORMATS)
def test_blocks_hold_the_nearest_number_in_units_of_their_scale(name: str) -> None:
    format = BLOCK_FORMATS[name]
    x = torch.randn(6, 96, generator=torch.Generator().manual_seed(2)) * torch.logspace(-6, 6, 6).unsqueeze(1)
    x[0, :32] = 0
    made = quantize_blocks(x, name)
    read = made.dequantize()
    held = numbers(format.element).numpy()
    for row, column in itertools.product(range(6), range(96)):
        unit = float(made.scales[row, column // format.block]) * made.tensor_scale
        nearest = np.abs(held * unit - float(x[row, column])).min()
        assert abs(float(read[row, column]) - float(x[row, column])) <= nearest + 1e-7 * abs(float(x[row, column]))
    assert made.codes.dtype == torch.uint8
    assert int(made.codes.max()) < 2**format.element.bits


@pytest.mark.parametrize("name", ["mxfp4", "mxfp8-e4m3", "mxfp8-e5m2"])
def test_microscaling_scales_are_those_of_the_specification(name: str) -> None:
    x = torch.zeros(4, 32)
    x[:, 3] = torch.tensor([1.0, 5.9, 2.0**-140, 0.0])
    made = quantize_blocks(x, name)
    emax = {"mxfp4": 2, "mxfp8-e4m3": 8, "mxfp8-e5m2": 15}[name]
    assert made.scales.flatten().tolist() == [2.0**-emax, 2.0 ** (2 - emax), 2.0**-127, 2.0**-127]
    assert torch.equal(made.scales.to(torch.float8_e8m0fnu).float(), made.scales)


def test_nvfp4_brings_the_largest_of_the_tensor_to_the_largest_code() -> None:
    x = torch.randn(4, 64, generator=torch.Generator().manual_seed(3))
    made = quantize_blocks(x, "nvfp4")
    assert torch.equal(round_to(made.scales, "e4m3"), made.scales)
    assert float(made.scales.max()) == 448
    assert float(made.dequantize().abs().max()) == pytest.approx(float(x.abs().max()), rel=1e-6)
    mx = quantize_blocks(x, "mxfp4").dequantize()
    assert float((made.dequantize() - x).norm()) < float((mx - x).norm())
    assert quantize_blocks(torch.zeros(1, 16), "nvfp4").dequantize().abs().sum() == 0


def test_bits_of_a_value_count_its_share_of_the_scale() -> None:
    assert {name: each.bits_per_value for name, each in BLOCK_FORMATS.items()} == {
        "mxfp8-e4m3": 8.25,
        "mxfp8-e5m2": 8.25,
        "mxfp4": 4.25,
        "nvfp4": 4.5,
    }


def test_bad_input_is_named() -> None:
    with pytest.raises(ValueError, match="There is no format 'fp17'; there are fp32, tf32"):
        round_to(1.0, "fp17")
    with pytest.raises(ValueError, match="fp16 has codes from 0 to 65535"):
        FP16.parts(2**16)
    with pytest.raises(ValueError, match="e4m3 has 8 bits"):
        decode(torch.tensor([256]), "e4m3")
    with pytest.raises(TypeError, match="Codes must be integers"):
        decode(torch.tensor([1.0]), "e4m3")
    with pytest.raises(ValueError, match="There is no block format 'mxfp5'"):
        quantize_blocks(torch.ones(32), "mxfp5")
    with pytest.raises(ValueError, match=r"blocks of 32, and \(31,\)"):
        quantize_blocks(torch.ones(31), "mxfp4")
    with pytest.raises(ValueError, match="1 of 32 values are infinite or NaN"):
        quantize_blocks(torch.ones(32).index_fill(0, torch.tensor([3]), math.nan), "mxfp4")
    with pytest.raises(TypeError, match="must be floating-point"):
        quantize_blocks(torch.ones(32, dtype=torch.int32), "mxfp4")
