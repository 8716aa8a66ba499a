"""NF4 against its definition, written out weight by weight."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpuguide import lora
from gpuguide.errors import GpuguideError
from gpuguide.lora import nf4
from gpuguide.lora.packed import PackedMatrix


def test_the_values_are_quantiles_of_the_normal_distribution() -> None:
    """As appendix E of QLoRA makes them: eight from 0 up and seven from 0 down, scaled to -1 to 1."""
    highest = 0.9677083
    above = torch.special.ndtri(torch.linspace(highest, 0.5, 9, dtype=torch.float64)[:-1])
    below = -torch.special.ndtri(torch.linspace(highest, 0.5, 8, dtype=torch.float64)[:-1])
    values = torch.cat([above, below, torch.zeros(1)]).sort().values
    torch.testing.assert_close(torch.tensor(nf4.VALUES).double(), values / values.abs().max(), rtol=0, atol=1e-5)


@given(st.integers(1, 9), st.integers(1, 300), st.sampled_from([1e-4, 1.0, 1e3]))
def test_each_weight_becomes_the_nearest_value_times_its_scale(rows: int, columns: int, size: float) -> None:
    torch.manual_seed(rows * 1000 + columns)
    weight = torch.randn(rows, columns) * size
    packed = lora.quantize_nf4(weight)
    back = packed.dequantize().flatten()
    scales = nf4._scales(packed.scales, packed.of_scales)
    assert back.shape == (rows * columns,)
    for place in torch.randperm(len(back))[:20].tolist():
        steps = torch.tensor(nf4.VALUES) * scales[place // nf4.BLOCK]
        nearest = (steps - weight.flatten()[place]).abs().min()
        assert float((back[place] - weight.flatten()[place]).abs()) <= float(nearest) * (1 + 1e-5) + 1e-30


def test_normal_weights_come_back_within_a_tenth_and_take_little() -> None:
    weight = torch.randn(256, 768, generator=torch.Generator().manual_seed(0)) * 0.02
    packed = lora.quantize_nf4(weight.bfloat16())
    error = (packed.dequantize() - weight).norm() / weight.norm()
    assert error < 0.1
    assert 8 * packed.nbytes / weight.numel() == pytest.approx(4 + 8 / 64 + 64 / (64 * 256))
    assert packed.dequantize(torch.bfloat16).dtype == torch.bfloat16


@pytest.mark.parametrize("value", [0.0, 3.0, -0.25])
def test_constant_matrices_come_back(value: float) -> None:
    weight = torch.full((3, 70), value)
    torch.testing.assert_close(lora.quantize_nf4(weight).dequantize(), weight, rtol=0.01, atol=0)


@pytest.mark.parametrize(
    "weight", [torch.zeros(3), torch.zeros(0, 2), torch.zeros(2, 2, dtype=torch.int32), torch.full((2, 2), torch.nan)]
)
def test_what_is_no_matrix_of_numbers_is_refused(weight: torch.Tensor) -> None:
    with pytest.raises(GpuguideError, match=r"NF4 stores|NaN or infinite"):
        lora.quantize_nf4(weight)


def test_a_packed_matrix_moves_with_its_model_and_is_not_cast() -> None:
    packed = lora.quantize_nf4(torch.randn(5, 70))
    matrix = PackedMatrix(packed)
    want = packed.dequantize()
    matrix.to(torch.bfloat16)
    assert torch.equal(matrix.dequantize(torch.float32), want)
    assert not matrix.state_dict()
    assert matrix.nbytes >= packed.nbytes
    assert all(part.device.type == "meta" for part in matrix.to("meta").parts)
    with pytest.raises(GpuguideError, match="is a dataclass"):
        PackedMatrix(torch.nn.Linear(2, 2))  # type: ignore[arg-type]
