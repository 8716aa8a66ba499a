"""Weights in 8 and 4 bits, against a reference in NumPy that goes by the definition, one group at a time."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

import interpreted
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from interpreted import needs_triton
from torch import nn

from gpuguide import models
from gpuguide.models import corpus
from gpuguide.models.evaluation import evaluate
from gpuguide.models.gpt2 import GPT2, GPT2Config
from gpuguide.quantization import (
    GROUPS,
    Int4,
    Int8,
    linear,
    linear_layers,
    pack,
    quantize_int4,
    quantize_int8,
    quantize_model,
    relative_errors,
    round_to_nearest,
    rounding,
    unpack,
)

INPUT_OF_NIBBLE = [0, 2, 4, 6, 1, 3, 5, 7]
"""As the format says: bits 0 to 3 hold k0, 4 to 7 hold k2, … 28 to 31 hold k7"""
FORMATS = [torch.bfloat16, torch.float32]
on_each_device = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
shapes = st.tuples(st.integers(1, 9), st.integers(1, 300))
seeds = st.integers(0, 1000)


def matrix(shape: tuple[int, int], seed: int = 0, size: float = 0.02) -> torch.Tensor:
    """Weights as a model has them: rows of different size, and a few large ones."""
    random = np.random.default_rng(seed)
    values = random.standard_t(5, shape) * random.uniform(0.2, 5, (shape[0], 1)) * size
    return torch.tensor(values, dtype=torch.float32)


def read_nibbles(words: torch.Tensor) -> np.ndarray:
    """Take words apart, a bit pattern at a time, as Python's integers."""
    rows = []
    for row in words.tolist():
        values = []
        for word in row:
            eight = [0] * 8
            for nibble, element in enumerate(INPUT_OF_NIBBLE):
                eight[element] = (word % 2**32) // 16**nibble % 16
            values += eight
        rows.append(values)
    return np.array(rows)


def read_int4(stored: Int4) -> np.ndarray:
    """What a matrix reads as, in float64: (q - 8) * scale."""
    scales = np.repeat(stored.scales.double().numpy(), stored.group, axis=1)
    return ((read_nibbles(stored.weight) - 8) * scales)[:, : stored.in_features]


def groups_of(weight: torch.Tensor, group: int) -> Iterator[tuple[tuple[int, int], np.ndarray]]:
    """Each group of weights in float64, with its place among the scales; the last of a row may be shorter."""
    for row, values in enumerate(weight.double().numpy()):
        for number, start in enumerate(range(0, len(values), group)):
            yield (row, number), values[start : start + group]


def squared_error(values: np.ndarray, scale: float) -> float:
    return float((((values / scale).round().clip(-8, 7) * scale - values) ** 2).sum())


# --- how 4 bits lie in words -----------------------------------------------------------------------------


@on_each_device
@pytest.mark.parametrize("element", range(8))
def test_the_place_of_each_nibble_bit_by_bit(element: int, device: str) -> None:
    for bit in range(4):
        values = torch.zeros(1, 8, dtype=torch.uint8, device=device)
        values[0, element] = 2**bit
        word = int(pack(values)[0, 0]) % 2**32
        assert word == 1 << (4 * INPUT_OF_NIBBLE.index(element) + bit)


def test_one_mask_takes_two_neighbours() -> None:
    values = torch.arange(8, 16, dtype=torch.uint8).flip(0)[None]
    word = int(pack(values)[0, 0])
    for pair in range(4):
        lanes = (word >> 4 * pair) & 0x000F000F
        assert [lanes & 0xFFFF, lanes >> 16] == values[0, 2 * pair : 2 * pair + 2].tolist()


@on_each_device
@given(rows=st.integers(0, 4), words=st.integers(0, 5), seed=seeds, kind=st.sampled_from([torch.uint8, torch.int64]))
def test_packed_values_come_back(device: str, rows: int, words: int, seed: int, kind: torch.dtype) -> None:
    values = torch.randint(16, (rows, 8 * words), generator=torch.Generator().manual_seed(seed)).to(kind)
    packed = pack(values.to(device))
    assert (packed.dtype, packed.shape) == (torch.int32, (rows, words))
    assert read_nibbles(packed.cpu()).reshape(values.shape).tolist() == values.tolist()
    assert unpack(packed).dtype == torch.uint8
    assert torch.equal(unpack(packed).cpu(), values.to(torch.uint8))


def test_any_number_of_axes() -> None:
    values = torch.randint(16, (2, 3, 16), generator=torch.Generator().manual_seed(0))
    assert torch.equal(pack(values)[1, 2], pack(values[1, 2]))
    assert torch.equal(unpack(pack(values)), values.to(torch.uint8))


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        (torch.zeros(1, 8), TypeError, "Values to pack must be integers, not torch.float32; round them first."),
        (torch.zeros(1, 8, dtype=torch.bool), TypeError, "Values to pack must be integers, not torch.bool"),
        (torch.tensor(3), ValueError, "A word takes 8 values, and () is no multiple of it"),
        (torch.zeros(1, 12, dtype=torch.uint8), ValueError, "A word takes 8 values, and (1, 12) is no multiple of it"),
        (torch.full((1, 8), 16), ValueError, "Values lie from 16 to 16; 4 bits hold 0 to 15."),
        (torch.full((1, 8), -1), ValueError, "Values lie from -1 to -1; 4 bits hold 0 to 15."),
    ],
)
def test_values_that_cannot_be_packed(values: torch.Tensor, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^{re.escape(message)}"):
        pack(values)


def test_only_words_are_unpacked() -> None:
    with pytest.raises(TypeError, match=r"Packed words must be torch\.int32, not torch\.int64\."):
        unpack(torch.zeros(1, 1, dtype=torch.int64))


# --- 8 bits ----------------------------------------------------------------------------------------------


@on_each_device
@given(shape=shapes, seed=seeds, exponent=st.integers(-30, 30))
def test_8_bits_are_as_defined(device: str, shape: tuple[int, int], seed: int, exponent: int) -> None:
    weight = matrix(shape, seed, 10.0**exponent)
    stored = quantize_int8(weight.to(device)).to("cpu")
    assert (stored.weight.dtype, stored.weight.shape) == (torch.int8, shape)
    assert (stored.scales.dtype, stored.scales.shape) == (torch.float32, (shape[0], 1))
    assert (stored.out_features, stored.in_features, stored.groups, stored.group) == (*shape, 1, shape[1])
    exact = weight.double().numpy()
    scales = np.abs(exact).max(axis=1, keepdims=True) / 127
    np.testing.assert_allclose(stored.scales.numpy(), scales, rtol=1e-6)
    read = stored.weight.double().numpy() * stored.scales.double().numpy()
    assert (np.abs(read - exact) <= (0.5 + 1e-4) * scales).all()
    assert int(stored.weight.abs().amax(dim=1).min()) == 127
    np.testing.assert_allclose(stored.dequantize().numpy(), read, rtol=1e-6)


# --- 4 bits ----------------------------------------------------------------------------------------------


@on_each_device
@given(
    shape=shapes,
    group=st.sampled_from(GROUPS),
    seed=seeds,
    exponent=st.integers(-30, 30),
    scale_dtype=st.sampled_from(FORMATS),
)
def test_4_bits_are_as_defined(
    device: str, shape: tuple[int, int], group: int, seed: int, exponent: int, scale_dtype: torch.dtype
) -> None:
    weight = matrix(shape, seed, 10.0**exponent)
    stored = quantize_int4(weight.to(device), group, scale_dtype=scale_dtype).to("cpu")
    groups = -(-shape[1] // group)
    assert (stored.weight.dtype, stored.weight.shape) == (torch.int32, (shape[0], groups * group // 8))
    assert (stored.scales.dtype, stored.scales.shape) == (scale_dtype, (shape[0], groups))
    assert (stored.out_features, stored.in_features, stored.groups, stored.group) == (*shape, groups, group)
    nibbles = read_nibbles(stored.weight)
    assert (nibbles[:, shape[1] :] == 8).all()
    exact = weight.double().numpy()
    q = nibbles[:, : shape[1]] - 8
    scales = np.repeat(stored.scales.double().numpy(), group, axis=1)[:, : shape[1]]
    missed = np.abs(q * scales - exact)
    steps = exact / scales
    clipped = (steps < -8) | (steps > 7)
    assert (missed <= (0.5 + 1e-4) * np.abs(scales))[~clipped].all()
    assert (q == np.where(steps < 0, -8, 7))[clipped].all()
    np.testing.assert_allclose(stored.dequantize().numpy(), q * scales, rtol=1e-6)


@given(shape=shapes, group=st.sampled_from(GROUPS), seed=seeds, scale_dtype=st.sampled_from(FORMATS))
def test_no_other_scale_that_is_tried_is_better(
    shape: tuple[int, int], group: int, seed: int, scale_dtype: torch.dtype
) -> None:
    weight = matrix(shape, seed)
    scales = quantize_int4(weight, group, scale_dtype=scale_dtype).scales.double()
    for place, values in groups_of(weight, group):
        largest = torch.tensor(np.abs(values).max(), dtype=torch.float32)
        signed = [sign * divisor for sign, divisor in itertools.product((1, -1), rounding.DIVISORS)]
        tried = [float((largest / divisor).to(scale_dtype)) for divisor in signed]
        least = min(squared_error(values, scale) for scale in tried)
        assert squared_error(values, float(scales[place])) <= least * (1 + 1e-4) + 1e-12 * float(largest) ** 2
        assert float(scales[place]) in tried


@on_each_device
@given(shape=shapes, group=st.sampled_from(GROUPS), seed=seeds, scale_dtype=st.sampled_from(FORMATS))
def test_values_that_4_bits_can_hold_come_back_exactly(
    device: str, shape: tuple[int, int], group: int, seed: int, scale_dtype: torch.dtype
) -> None:
    """Each group holds multiples of a number of its own, with few digits, and its largest is 4 to 8 times that."""
    random = np.random.default_rng(seed)
    groups = -(-shape[1] // group)
    largest = random.integers(4, 9, (shape[0], groups))
    scales = random.integers(1, 128, (shape[0], groups)) * 2.0 ** random.integers(-20, 5) * random.choice([-1, 1])
    spread = np.repeat(largest, group, axis=1)
    q = np.maximum(random.integers(-spread, np.minimum(spread, 7) + 1), -8)
    q[:, ::group] = -largest
    values = (q * np.repeat(scales, group, axis=1))[:, : shape[1]]
    weight = torch.tensor(values, dtype=torch.float32)
    read = quantize_int4(weight.to(device), group, scale_dtype=scale_dtype).dequantize().cpu()
    assert torch.equal(read, weight)


def test_values_that_8_bits_can_hold_come_back_exactly() -> None:
    q = torch.randint(-127, 128, (5, 77), generator=torch.Generator().manual_seed(0))
    q[:, 3] = torch.tensor([127, -127, 127, -127, 127])
    weight = q * torch.tensor([[1.0], [0.25], [3.0], [2**-30], [5e-5]])
    exact = [0, 1, 2, 3]
    assert torch.equal(quantize_int8(weight).dequantize()[exact], weight[exact])
    assert torch.equal(quantize_int8(weight).weight, q.to(torch.int8))


@pytest.mark.parametrize("group", GROUPS)
def test_clipping_the_largest_weight_beats_keeping_it(group: int) -> None:
    """Of a normal distribution, which many layers come near."""
    weight = torch.randn(64, 512, generator=torch.Generator().manual_seed(0))
    searched = (quantize_int4(weight, group).dequantize() - weight).norm()
    kept = (round_to_nearest(weight, 4, group) - weight).norm()
    assert searched < 0.9 * kept


# --- both ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_weights_of_every_format(kind: torch.dtype) -> None:
    weight = matrix((5, 70)).to(kind)
    for of_kind, of_fp32 in (
        (quantize_int8(weight), quantize_int8(weight.float())),
        (quantize_int4(weight), quantize_int4(weight.float())),
    ):
        assert torch.equal(of_kind.weight, of_fp32.weight)
        assert torch.equal(of_kind.scales, of_fp32.scales)
        assert torch.equal(of_kind.dequantize(kind), of_fp32.dequantize().to(kind))


def test_weights_of_every_layout() -> None:
    weight = matrix((70, 40)).t()
    sliced = matrix((50, 200))[::2, 3:90:2]
    for given_one in (weight, sliced, nn.Parameter(sliced)):
        copied = given_one.detach().clone(memory_format=torch.contiguous_format)
        for quantize in (quantize_int8, quantize_int4, lambda w: quantize_int4(w, 32)):
            found, wanted = quantize(given_one), quantize(copied)
            assert torch.equal(found.weight, wanted.weight)
            assert torch.equal(found.scales, wanted.scales)
            assert found.weight.is_contiguous()
            assert not found.scales.requires_grad
        assert torch.equal(round_to_nearest(given_one.detach(), 4, 32), round_to_nearest(copied, 4, 32))


def test_some_rows_at_a_time_or_all(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = matrix((23, 100))
    whole = quantize_int8(weight), quantize_int4(weight, 32)
    for at_once in (1, 300, 2300):
        monkeypatch.setattr(rounding, "AT_ONCE", at_once)
        for found, wanted in zip((quantize_int8(weight), quantize_int4(weight, 32)), whole, strict=True):
            assert torch.equal(found.weight, wanted.weight)
            assert torch.equal(found.scales, wanted.scales)


def test_the_weights_stay_as_they_are() -> None:
    weight = matrix((3, 50))
    kept = weight.clone()
    quantize_int8(weight), quantize_int4(weight), round_to_nearest(weight)
    assert torch.equal(weight, kept)


def test_zeros_and_the_smallest_numbers_read_as_zero_or_nearly() -> None:
    weight = torch.zeros(3, 130)
    weight[1, 4] = 1e-45
    weight[2, 129] = 0.5
    for stored in (quantize_int8(weight), quantize_int4(weight), quantize_int4(weight, scale_dtype=torch.float32)):
        assert stored.scales.isfinite().all()
        torch.testing.assert_close(stored.dequantize(), weight, rtol=0, atol=1e-44)
    assert torch.equal(round_to_nearest(weight)[[0, 2]], weight[[0, 2]])


def test_the_largest_numbers() -> None:
    weight = torch.tensor([[3e38, -1e38, 0.0, 2e38]])
    for stored in (quantize_int8(weight), quantize_int4(weight)):
        torch.testing.assert_close(stored.dequantize(torch.float64), weight.double(), rtol=0, atol=5e37)


def test_bytes() -> None:
    weight = matrix((7, 300))
    assert quantize_int8(weight).nbytes == 7 * 300 + 7 * 4
    assert quantize_int4(weight).nbytes == 7 * (384 // 2 + 3 * 2)
    assert quantize_int4(weight, 64, scale_dtype=torch.float32).nbytes == 7 * (320 // 2 + 5 * 4)
    assert quantize_int4(weight, 32).nbytes == 7 * (320 // 2 + 10 * 2)


@pytest.mark.parametrize("to", [torch.float16, torch.bfloat16, torch.float64])
def test_values_are_rounded_once(to: torch.dtype) -> None:
    for stored in (quantize_int8(matrix((4, 40))), quantize_int4(matrix((4, 40)))):
        assert torch.equal(stored.dequantize(to), stored.dequantize().to(to))


@given(shape=shapes, group=st.sampled_from([1, 7, 32, None]), bits=st.integers(2, 8), seed=seeds)
def test_the_plain_version(shape: tuple[int, int], group: int | None, bits: int, seed: int) -> None:
    weight = matrix(shape, seed)
    read = round_to_nearest(weight, bits, group)
    highest = 2 ** (bits - 1) - 1
    length = group or shape[1]
    for (row, number), values in groups_of(weight, length):
        scale = np.abs(values).max() / highest
        found = read[row, number * length : (number + 1) * length].double().numpy()
        np.testing.assert_allclose(found / scale, (found / scale).round(), atol=1e-4)
        assert (np.abs(found - values) <= (0.5 + 1e-4) * scale).all()
        assert np.abs(found).max() == pytest.approx(np.abs(values).max(), rel=1e-6)


def test_8_bits_are_the_plain_version() -> None:
    weight = matrix((6, 90))
    assert torch.equal(quantize_int8(weight).dequantize(), round_to_nearest(weight, bits=8))


@pytest.mark.parametrize(
    ("weight", "error", "message"),
    [
        (torch.zeros(3), ValueError, "Weights must be a matrix (out, in) with a row and a column or more; not (3,)."),
        (torch.zeros(1, 2, 3), ValueError, "Weights must be a matrix"),
        (torch.zeros(0, 4), ValueError, "Weights must be a matrix (out, in) with a row and a column or more; not (0,"),
        (torch.zeros(4, 0), ValueError, "Weights must be a matrix"),
        (torch.zeros(2, 2, dtype=torch.int8), TypeError, "Weights must be floating-point numbers, not torch.int8."),
    ],
)
def test_what_is_no_matrix_is_named(weight: torch.Tensor, error: type[Exception], message: str) -> None:
    for quantize in (quantize_int8, quantize_int4, round_to_nearest):
        with pytest.raises(error, match=f"^{re.escape(message)}"):
            quantize(weight)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf, 1e300])
@pytest.mark.parametrize("at_once", [1, 10**6])
def test_weights_that_are_not_finite_are_named(bad: float, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounding, "AT_ONCE", at_once)
    weight = matrix((4, 33)).double()
    weight[2, 32] = bad
    for quantize in (quantize_int8, quantize_int4):
        with pytest.raises(ValueError, match=r"^Weights must be finite in fp32, but row 2 of \(4, 33\) is not\.$"):
            quantize(weight)


@pytest.mark.parametrize("group", [0, -128, 16, 33, 256])
def test_other_groups_are_refused(group: int) -> None:
    with pytest.raises(ValueError, match=f"^The group is {group}; inputs share a scale in groups of 32, 64 or 128"):
        quantize_int4(matrix((2, 64)), group)


def test_other_settings_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^The scales' format is torch\.float16"):
        quantize_int4(matrix((2, 64)), scale_dtype=torch.float16)
    for bits, group in ((1, None), (4, 0), (4, -1)):
        with pytest.raises(ValueError, match=r"^A weight has -?\d bits and a group -?\d+ inputs"):
            round_to_nearest(matrix((2, 4)), bits, group)


def test_parts_that_do_not_fit_are_refused() -> None:
    eight, four = quantize_int8(matrix((3, 200))), quantize_int4(matrix((3, 200)))
    for weight, scales in (
        (eight.weight.float(), eight.scales),
        (eight.weight[0], eight.scales),
        (eight.weight, eight.scales[:2]),
        (eight.weight, four.scales),
        (eight.weight, eight.scales.bfloat16()),
    ):
        with pytest.raises(ValueError, match=r"^8-bit weights are int8 of the shape \(out, in\)"):
            Int8(weight, scales)
    for weight, scales, inputs in (
        (four.weight.long(), four.scales, 200),
        (four.weight[0], four.scales, 200),
        (four.weight, four.scales[:2], 200),
        (four.weight, four.scales[:, :1], 200),
        (four.weight, four.scales[:, :0], 200),
        (four.weight, four.scales.half(), 200),
        (four.weight, four.scales, 257),
        (four.weight, four.scales, 128),
    ):
        with pytest.raises(ValueError, match=rf"^4-bit weights for {inputs} inputs are int32 words"):
            Int4(weight, scales, inputs)


def the_kernel_reads_what_the_plain_version_reads() -> None:
    from gpuguide.quantization.unpacking import dequantize

    for shape, group, scale_dtype in (((3, 130), 32, torch.bfloat16), ((17, 257), 128, torch.float32)):
        four = quantize_int4(matrix(shape), group, scale_dtype=scale_dtype)
        found = dequantize(four.weight, four.scales, four.in_features, group, torch.float32)
        assert torch.equal(found, four.dequantize())


@needs_triton
def test_the_kernel_reads_what_the_plain_version_reads() -> None:
    interpreted.run(__file__, "the_kernel_reads_what_the_plain_version_reads()")


# --- multiplying -----------------------------------------------------------------------------------------


@on_each_device
@given(
    shape=shapes,
    batch=st.lists(st.integers(0, 4), max_size=2),
    seed=seeds,
    kind=st.sampled_from([*FORMATS, torch.half]),
)
def test_linear_is_the_product_in_float64(
    device: str, shape: tuple[int, int], batch: list[int], seed: int, kind: torch.dtype
) -> None:
    weight = matrix(shape, seed)
    x = torch.randn(*batch, shape[1], generator=torch.Generator().manual_seed(seed)).to(kind)
    eight, four = quantize_int8(weight), quantize_int4(weight, 64)
    read = {eight: eight.weight.double().numpy() * eight.scales.double().numpy(), four: read_int4(four)}
    for stored, values in read.items():
        found = linear(x.to(device), stored.to(device)).cpu()
        wanted = x.double().numpy() @ values.T
        bound = np.abs(x.double().numpy()) @ np.abs(values.T)
        assert (found.dtype, found.shape) == (kind, (*batch, shape[0]))
        missed = np.abs(found.double().numpy() - wanted)
        of_each = torch.finfo(kind).eps if (device, kind) == ("cuda", torch.bfloat16) else 1e-5  # of each weight
        assert (missed <= torch.finfo(kind).eps * np.abs(wanted) + of_each * bound + 1e-7).all()


def test_linear_has_a_gradient_by_its_input() -> None:
    stored = quantize_int4(matrix((4, 40)), 32)
    x = torch.ones(2, 40, requires_grad=True)
    linear(x, stored).sum().backward()
    torch.testing.assert_close(x.grad, stored.dequantize().sum(dim=0).expand(2, 40))


@pytest.mark.parametrize("x", [torch.tensor(1.0), torch.zeros(2, 41)])
def test_inputs_that_do_not_fit(x: torch.Tensor) -> None:
    for stored in (quantize_int8(matrix((4, 40))), quantize_int4(matrix((4, 40)))):
        with pytest.raises(ValueError, match=r"^The matrix takes inputs of the shape \(\.\.\., 40\); given \("):
            linear(x, stored)


# --- whole models ----------------------------------------------------------------------------------------


@pytest.fixture
def small() -> GPT2:
    torch.manual_seed(0)
    return GPT2(GPT2Config(vocab_size=61, context=16, layers=2, heads=2, hidden=20)).eval()


@pytest.mark.parametrize("weights", ["int8", "int4", round_to_nearest])
def test_a_copy_has_the_values_that_are_read_back(small: GPT2, weights: str) -> None:
    before = {name: tensor.clone() for name, tensor in small.state_dict().items()}
    changed = quantize_model(small, weights, 32)
    read = {
        "int8": lambda w: quantize_int8(w).dequantize(),
        "int4": lambda w: quantize_int4(w, 32).dequantize(),
        round_to_nearest: round_to_nearest,
    }[weights]
    quantised = re.compile(r"blocks\.\d\.(attention\.(query_key_value|out)|feed_forward\.(up|down))\.weight")
    for name, tensor in changed.state_dict().items():
        assert torch.equal(tensor, read(before[name]) if quantised.fullmatch(name) else before[name]), name
    assert all(torch.equal(tensor, before[name]) for name, tensor in small.state_dict().items())
    assert changed.head.weight is changed.token_embedding.weight
    assert not changed.training


def test_a_quantised_head_is_untied(small: GPT2) -> None:
    changed = quantize_model(small, "int8", head=True)
    assert torch.equal(changed.token_embedding.weight, small.token_embedding.weight)
    assert torch.equal(changed.head.weight, quantize_int8(small.head.weight).dequantize())
    assert small.head.weight is small.token_embedding.weight


def test_a_copy_computes_what_quantised_layers_do(small: GPT2) -> None:
    layer = small.blocks[1].feed_forward.up
    changed = quantize_model(small, "int4", 64).blocks[1].feed_forward.up
    x = torch.randn(3, 20, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(changed(x), linear(x, quantize_int4(layer.weight, 64)) + layer.bias)


def test_a_copy_keeps_format_and_training(small: GPT2) -> None:
    small.bfloat16().train().requires_grad_(False)
    small.blocks[0].attention.out.weight.requires_grad_(True)
    changed = quantize_model(small, head=True)
    assert changed.training
    assert {tensor.dtype for tensor in changed.parameters()} == {torch.bfloat16}
    wants = [name for name, tensor in changed.named_parameters() if tensor.requires_grad]
    assert wants == ["blocks.0.attention.out.weight"]


def test_errors_by_kind_of_layer(small: GPT2) -> None:
    found = relative_errors(small, "int4", 32)
    kinds = {
        "attention.query_key_value": [block.attention.query_key_value for block in small.blocks],
        "attention.out": [block.attention.out for block in small.blocks],
        "feed_forward.up": [block.feed_forward.up for block in small.blocks],
        "feed_forward.down": [block.feed_forward.down for block in small.blocks],
        "head": [small.head],
    }
    assert list(found) == list(kinds)
    for kind, layers in kinds.items():
        exact = np.concatenate([layer.weight.detach().double().numpy().ravel() for layer in layers])
        read = np.concatenate([read_int4(quantize_int4(layer.weight, 32)).ravel() for layer in layers])
        assert found[kind] == pytest.approx(np.linalg.norm(read - exact) / np.linalg.norm(exact), rel=1e-5)
    assert max(relative_errors(small, "int8").values()) < 0.02
    assert set(relative_errors(small, lambda weight: weight).values()) == {0}
    assert set(relative_errors(small, torch.zeros_like).values()) == {1}


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_layers_of_zeros_come_back_exactly(weights: str) -> None:
    model = nn.ModuleDict({"up": nn.Linear(8, 8), "down": nn.Linear(8, 8)})
    nn.init.zeros_(model.get_submodule("up").weight)  # type: ignore[arg-type]
    errors = relative_errors(model, weights)
    assert errors["up"] == 0
    assert 0 < errors["down"] < 0.2
    lost = relative_errors(model, torch.ones_like)
    assert lost["up"] == float("inf")


def test_linear_layers_without_numbers_or_of_other_names() -> None:
    model = nn.ModuleDict({"inner": nn.ModuleDict({"up": nn.Linear(8, 8)}), "lm_head": nn.Linear(8, 8)})
    assert list(linear_layers(model)) == ["inner.up", "lm_head"]
    assert list(linear_layers(model, head=False)) == ["inner.up"]
    assert list(relative_errors(model)) == ["inner.up", "lm_head"]


def test_models_and_weights_that_there_are_not(small: GPT2) -> None:
    for model in (nn.LayerNorm(4), nn.ModuleDict({"head": nn.Linear(4, 4)})):
        with pytest.raises(ValueError, match=rf"^{type(model).__name__} has no layer of torch\.nn\.Linear"):
            quantize_model(model)
    with pytest.raises(ValueError, match=r"^There are no weights 'int5'; choose int8, int4 or a function"):
        quantize_model(small, "int5")
    with pytest.raises(ValueError, match=r"^The group is 5"):
        relative_errors(small, "int4", 5)


def test_a_llama_of_another_library() -> None:
    """Names, layers and head of ``transformers``; what quantising costs is small, and is not nothing."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "vocab_size": 50}
    model = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2)).eval()
    kinds = [f"self_attn.{name}_proj" for name in "qkvo"] + [f"mlp.{name}_proj" for name in ("gate", "up", "down")]
    assert list(relative_errors(model)) == [*kinds, "lm_head"]
    tokens = torch.arange(10)[None]
    with torch.no_grad():
        exact, found = model(tokens).logits, quantize_model(model, "int8", head=True)(tokens).logits
    assert 0 < (found - exact).norm() < 0.03 * exact.norm()


@pytest.mark.slow
def test_what_the_packaged_model_loses() -> None:
    """With 8 bits nothing that one could see, with 4 bits a few hundredths of a nat a token: on a third of the text."""
    main = models.load("main")
    text = corpus.load_held_out()[:8000]
    exact, eight, four = (
        evaluate(model, main.tokenizer, text).loss
        for model in (main.model, *(quantize_model(main.model, weights, head=True) for weights in ("int8", "int4")))
    )
    assert abs(eight - exact) < 0.01
    assert 0.005 < four - exact < 0.06


def test_finer_groups_of_the_packaged_model_lose_less() -> None:
    model = models.load("main").model
    errors = [relative_errors(model, "int4", group) for group in sorted(GROUPS)]
    whole_rows = relative_errors(model, round_to_nearest)
    for kind, plain in whole_rows.items():
        fine, middle, coarse = (found[kind] for found in errors)
        assert relative_errors(model, "int8")[kind] < 0.02 < fine < middle < coarse < plain, kind
