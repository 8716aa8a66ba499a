from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from gpuguide.systems import ceilings
from gpuguide.systems.ceilings import Matmul

every_format = pytest.mark.parametrize("format", ceilings.FORMATS)


def runs_here(format: str) -> bool:
    """Return whether this PyTorch multiplies the format on a CPU; float8 products are new there."""
    try:
        ceilings.make_matmul(16, 16, 16, format, "cpu")()
    except (RuntimeError, NotImplementedError):
        return False
    return True


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@every_format
@pytest.mark.parametrize(("rows", "inner", "columns"), [(16, 16, 16), (64, 128, 32), (16, 256, 48), (200, 64, 80)])
def test_products_agree_with_float64(format: str, rows: int, inner: int, columns: int) -> None:
    if not runs_here(format):
        pytest.skip(f"this PyTorch has no {format} product for CPUs")
    product = ceilings.make_matmul(rows, inner, columns, format, "cpu")
    assert tuple(product.left.shape) == (rows, inner)
    assert tuple(product.right.shape) == (inner, columns)
    assert torch.isnan(product.out).all()  # so that an element which is never written is found out
    result = product()
    assert result.data_ptr() == product.out.data_ptr()
    left, right = product.left.float().numpy().astype(np.float64), product.right.float().numpy().astype(np.float64)
    expected = left @ right
    error = np.linalg.norm(result.float().numpy() - expected) / np.linalg.norm(expected)
    assert error <= ceilings.RELATIVE_ERROR[format]
    if rows <= 64:
        assert ceilings.matmul_error(product) == pytest.approx(error, rel=1e-3)
    assert ceilings.matmul_error(product, rows=8) <= ceilings.RELATIVE_ERROR[format]


@every_format
def test_element_sizes_are_those_of_the_tensors(format: str) -> None:
    product = ceilings.make_matmul(16, 32, 48, format, "meta")
    assert product.left.element_size() == product.right.element_size() == ceilings.ELEMENT_SIZE[format]
    assert product.out.dtype == (torch.bfloat16 if format == "fp8" else ceilings.STORAGE[format])


def test_operands_are_random_and_follow_the_seed() -> None:
    one = ceilings.make_matmul(256, 256, 256, "fp32", "cpu")
    assert abs(float(one.left.mean())) < 0.02
    assert float(one.left.std()) == pytest.approx(1, abs=0.02)
    torch.manual_seed(0)
    again = ceilings.make_matmul(256, 256, 256, "fp32", "cpu")
    assert torch.equal(one.left, again.left)
    assert not torch.equal(one.left, one.right)


def test_zeros_are_zeros() -> None:
    product = ceilings.make_matmul(16, 16, 16, "bf16", "cpu", zeros=True)
    assert not product.left.any()
    assert not product.right.any()
    assert ceilings.matmul_error(product) == 0
    assert not product.out.any()


class Wrong(Matmul):
    """A product with one fault."""

    def __call__(self) -> torch.Tensor:
        result = super().__call__()
        result[5, 7] = fault
        return result


fault = 0.0


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("rows", [2, 64])
def test_an_element_that_is_no_number_is_found_in_any_row(
    monkeypatch: pytest.MonkeyPatch, value: float, rows: int
) -> None:
    """Also in a row that is not compared with float64."""
    monkeypatch.setitem(globals(), "fault", value)
    wrong = Wrong(**vars(ceilings.make_matmul(32, 32, 32, "fp32", "cpu")))
    assert math.isnan(ceilings.matmul_error(wrong, rows))
    assert not ceilings.matmul_error(wrong, rows) <= ceilings.RELATIVE_ERROR["fp32"]


@pytest.mark.parametrize("format", ["fp32", "bf16", "fp16"])
def test_a_wrong_result_exceeds_what_is_accepted(monkeypatch: pytest.MonkeyPatch, format: str) -> None:
    monkeypatch.setitem(globals(), "fault", 100.0)
    wrong = Wrong(**vars(ceilings.make_matmul(32, 32, 32, format, "cpu")))
    assert ceilings.matmul_error(wrong) > ceilings.RELATIVE_ERROR[format]


@pytest.mark.parametrize("mode", ["tf32", "ieee"])
def test_the_precision_of_products_is_put_back(mode: str) -> None:
    settings = torch.backends.cuda.matmul
    before = settings.fp32_precision
    with ceilings.fp32_precision(mode):
        assert settings.fp32_precision == mode
    assert settings.fp32_precision == before
    with pytest.raises(ZeroDivisionError), ceilings.fp32_precision(mode):
        raise ZeroDivisionError
    assert settings.fp32_precision == before


@pytest.mark.parametrize("size", [1, 1000, 4096, ceilings.RANDOM_BLOCK - 1, ceilings.RANDOM_BLOCK + 5])
def test_random_bytes(size: int) -> None:
    data = ceilings.random_bytes(size, "cpu")
    assert data.shape == (size,)
    assert data.dtype == torch.uint8
    if size >= 4096:
        counts = np.bincount(data.numpy(), minlength=256)
        assert counts.min() > 0
        assert counts.std() < 5 * math.sqrt(size / 256)
    if size > ceilings.RANDOM_BLOCK:
        assert torch.equal(data[ceilings.RANDOM_BLOCK :], data[: size - ceilings.RANDOM_BLOCK])


def test_a_copy_copies() -> None:
    source, destination = ceilings.random_bytes(1000, "cpu"), torch.zeros(1000, dtype=torch.uint8)
    ceilings.copy(source, destination)()
    np.testing.assert_array_equal(destination.numpy(), source.numpy())
