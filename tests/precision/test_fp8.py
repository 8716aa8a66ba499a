"""The fp8 layer against rounding written in another way, PyTorch's own product, and fp32."""

from __future__ import annotations

import math
import re
import subprocess
import sys

import interpreted
import pytest
import torch
from interpreted import needs_triton
from torch import nn

from gpuguide.precision import Fp8Linear, fp8_matmul, quantize_fp8, round_to, to_fp8
from gpuguide.precision.formats import BF16, E4M3, E5M2, FloatFormat
from gpuguide.precision.fp8 import Recipe, quantize_fp8_with_transpose
from gpuguide.precision.fp8.matrix import SMALLEST_SCALE

RECIPES: list[Recipe] = ["tensor", "block"]


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def rounded(x: torch.Tensor, format: FloatFormat, recipe: Recipe, square: bool = False) -> torch.Tensor:
    """What fp8 makes of a matrix, block by block, by :func:`round_to`."""
    if recipe == "tensor":
        scale = x.abs().max() / format.largest
        return round_to(x / scale, format) * scale
    result = torch.empty_like(x)
    height = 128 if square else 1
    for row in range(0, x.shape[0], height):
        for column in range(0, x.shape[1], 128):
            part = x[row : row + height, column : column + 128]
            scale = part.abs().max() / format.largest
            result[row : row + height, column : column + 128] = round_to(part / scale, format) * scale
    return result


def error(x: torch.Tensor, right: torch.Tensor) -> float:
    """Relative to the whole."""
    x = x.detach()
    return float((x.double() - right.detach().double()).norm() / right.detach().double().norm())


@pytest.mark.parametrize("recipe", RECIPES)
def test_result_and_gradients_are_products_of_rounded_matrices(recipe: Recipe) -> None:
    x, gradient = normal(2, 70, 192, seed=1), normal(2, 70, 144, seed=2) * 1e-3
    layer = Fp8Linear(192, 144, recipe=recipe)
    x.requires_grad_()
    y = layer(x)
    y.backward(gradient)
    flat, weight = x.detach().flatten(0, 1), layer.weight.detach()
    quantized = gradient.flatten(0, 1)
    expected = rounded(flat, E4M3, recipe) @ rounded(weight, E4M3, recipe, square=True).t()
    torch.testing.assert_close(y.flatten(0, 1), expected + layer.bias, rtol=1e-5, atol=1e-5)
    x_gradient = rounded(quantized, E5M2, recipe) @ rounded(weight, E4M3, recipe, square=True)
    assert x.grad is not None
    torch.testing.assert_close(x.grad.flatten(0, 1), x_gradient, rtol=1e-5, atol=1e-7)
    transposed, transposed_x = (
        rounded(quantized.t().contiguous(), E5M2, recipe),
        rounded(flat.t().contiguous(), E4M3, recipe),
    )
    assert layer.weight.grad is not None
    torch.testing.assert_close(layer.weight.grad, transposed @ transposed_x.t(), rtol=1e-5, atol=1e-6)
    assert layer.bias.grad is not None
    torch.testing.assert_close(layer.bias.grad, quantized.sum(0))


@pytest.mark.parametrize("recipe", RECIPES)
def test_result_and_gradients_are_near_those_in_fp32(recipe: Recipe) -> None:
    x, gradient = normal(256, 256, seed=1), normal(256, 128, seed=2)
    ours, exact = Fp8Linear(256, 128, recipe=recipe), nn.Linear(256, 128)
    exact.load_state_dict(ours.state_dict())
    one, other = x.clone().requires_grad_(), x.clone().requires_grad_()
    for layer, leaf in ((ours, one), (exact, other)):
        layer(leaf).backward(gradient)
    assert one.grad is not None
    assert other.grad is not None
    assert ours.weight.grad is not None
    assert exact.weight.grad is not None
    assert 0 < error(ours(x), exact(x)) < 0.05
    assert 0 < error(one.grad, other.grad) < 0.1
    assert 0 < error(ours.weight.grad, exact.weight.grad) < 0.1


def test_an_outlier_costs_the_whole_tensor_and_one_block_only() -> None:
    x = normal(64, 512)
    x[0, 0] = 1e6
    whole, blocks = quantize_fp8(x), quantize_fp8(x, block=(1, 128))
    others = slice(1, None)
    assert error(whole.dequantize()[others], x[others]) > 0.9
    assert error(blocks.dequantize()[others], x[others]) < 0.03


@pytest.mark.parametrize("format", [E4M3, E5M2])
def test_products_equal_pytorchs(format: FloatFormat) -> None:
    """PyTorch's product has an implementation for the CPU, too."""
    a, b = quantize_fp8(normal(32, 64), format), quantize_fp8(normal(48, 64, seed=1), E4M3)
    theirs = torch._scaled_mm(a.values, b.values.t(), scale_a=a.scales, scale_b=b.scales, out_dtype=torch.bfloat16)
    torch.testing.assert_close(fp8_matmul(a, b), theirs, rtol=2**-7, atol=1e-3)


@pytest.mark.parametrize("shape", [(1, 1), (3, 130), (129, 128), (257, 5)])
@pytest.mark.parametrize("block", [None, (1, 128), (128, 128)])
def test_any_shape_is_read_back_within_half_a_step(shape: tuple[int, int], block: tuple[int, int] | None) -> None:
    x = normal(*shape)
    read = quantize_fp8(x, E4M3, block).dequantize()
    largest = float(x.abs().max())
    assert bool(((read - x).abs() <= x.abs() * 2.0**-4 * 1.0001 + largest / 448 * 2.0**-10 * 1.0001).all())


@pytest.mark.parametrize("format", [E4M3, E5M2])
def test_a_matrix_is_stored_with_its_transpose(format: FloatFormat) -> None:
    x = normal(48, 80)
    quantized, transposed = quantize_fp8_with_transpose(x, format)
    assert bool((quantized.values.float() == quantize_fp8(x, format).values.float()).all())
    assert transposed.values.is_contiguous()
    assert torch.equal(transposed.dequantize(), quantized.dequantize().t())
    with pytest.raises(ValueError, match=r"A matrix becomes e4m3 or e5m2; given \(3,\) and e4m3"):
        quantize_fp8_with_transpose(x[0, :3])


def test_an_empty_matrix_stays_empty() -> None:
    quantized, transposed = quantize_fp8_with_transpose(torch.zeros(0, 48))
    assert (quantized.values.shape, transposed.values.shape) == ((0, 48), (48, 0))
    assert float(quantized.scales) == SMALLEST_SCALE


def test_zeros_stay_and_what_is_not_finite_becomes_nan() -> None:
    assert quantize_fp8(torch.zeros(4, 4)).dequantize().abs().sum() == 0
    for value in (math.inf, -math.inf, math.nan):
        x = normal(2, 256)
        x[0, 3] = value
        assert bool(quantize_fp8(x).dequantize().isnan().all())
        in_blocks = quantize_fp8(x, E5M2, (1, 128)).dequantize()
        assert bool(in_blocks[0, :128].isnan().all())
        assert bool(in_blocks[0, 128:].isfinite().all())
        assert bool(in_blocks[1].isfinite().all())


def test_autocast_decides_the_format_of_the_result() -> None:
    layer, x = Fp8Linear(16, 16), normal(3, 16)
    assert layer(x).dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(x)
    assert y.dtype == torch.bfloat16
    assert torch.equal(y, (layer(x) - layer.bias).bfloat16() + layer.bias.bfloat16())
    y.sum().backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.dtype == torch.float32
    assert layer(x[0]).shape == (16,)


def test_a_compiled_layer_is_the_same() -> None:
    layer, x = Fp8Linear(32, 16), normal(8, 32)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), layer(x))
    layer.zero_grad()
    layer(x).sum().backward()
    expected = layer.weight.grad
    layer.weight.grad = None
    compiled(x).sum().backward()
    torch.testing.assert_close(layer.weight.grad, expected)


def test_a_layer_is_compiled_before_anything_else_is_done_with_it() -> None:
    """In a process of its own: what other tests have looked up is not looked up again."""
    program = (
        "import torch\n"
        "from gpuguide.precision.fp8 import Fp8Linear\n"
        "compiled = torch.compile(Fp8Linear(32, 16), backend='eager', fullgraph=True)\n"
        "assert compiled(torch.ones(8, 32)).shape == (8, 16)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=600)


def test_layers_of_a_model_are_replaced_with_their_parameters() -> None:
    model = nn.Sequential(nn.Linear(16, 32), nn.Sequential(nn.GELU(), nn.Linear(32, 32, bias=False)), nn.Linear(32, 16))
    model.append(nn.Linear(16, 5))
    before = dict(model.named_parameters())
    assert to_fp8(model, "block", keep=["2"]) == ["0", "1.1"]
    assert dict(model.named_parameters()).keys() == before.keys()
    assert all(each is before[name] for name, each in model.named_parameters())
    assert isinstance(model[0], Fp8Linear)
    assert type(model[2]) is type(model[3]) is nn.Linear
    assert "recipe='block'" in repr(model)
    with pytest.raises(ValueError, match="head is no linear layer of the model; there are 2, 3"):
        to_fp8(model, keep=["head"])


def test_training_in_fp8_lowers_the_loss() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 16))
    to_fp8(model)
    x, target = normal(64, 32), normal(64, 16, seed=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), target)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.5 * losses[0]


def test_bad_input_is_named() -> None:
    with pytest.raises(ValueError, match="There is no recipe 'row'; there are tensor and block"):
        Fp8Linear(16, 16, recipe="row")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"given \(3,\) and e4m3"):
        quantize_fp8(torch.ones(3))
    with pytest.raises(ValueError, match="and bf16"):
        quantize_fp8(torch.ones(3, 3), BF16)
    with pytest.raises(ValueError, match="have no size"):
        quantize_fp8(torch.ones(3, 3), block=(0, 1))
    wide, quantized = quantize_fp8(torch.ones(4, 8), E5M2), quantize_fp8(torch.ones(4, 6), E5M2)
    with pytest.raises(ValueError, match=r"\(4, 8\) and \(4, 6\) do not fit"):
        fp8_matmul(wide, quantized)
    with pytest.raises(ValueError, match="Both matrices are e5m2"):
        fp8_matmul(wide, wide)
    with pytest.raises(ValueError, match="transpose"):
        quantize_fp8(torch.ones(4, 8), block=(1, 4)).transpose()


# --- on the GPU ----------------------------------------------------------------------------------------


# --- the kernels that round ----------------------------------------------------------------------------

SHAPES = [(1, 1), (3, 130), (64, 128), (200, 300)]
"""One value, part of a tile, a whole tile, and several with ragged ends"""


@needs_triton
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_kernels_find_the_scale_and_multiply(shape: tuple[int, int]) -> None:
    """Interpreted. The interpreter's rounding to fp8 is wrong at powers of two, so shares are stored in fp16 here."""
    interpreted.run(__file__, f"scale_and_multiply({shape})")


def scale_and_multiply(shape: tuple[int, int]) -> None:
    """Assert that shares are those of PyTorch, also of zeros, of bf16, and where a value is not finite."""
    from gpuguide.precision.fp8 import kernels

    for largest in (E4M3.largest, E5M2.largest):
        for x in (normal(*shape), normal(*shape).bfloat16(), torch.zeros(shape), normal(*shape) * 1e-42):
            shares, transposed, scale = kernels.quantize(x, torch.float16, largest, SMALLEST_SCALE, transposed=True)
            assert float(scale) == max(float(x.float().abs().max() / largest), SMALLEST_SCALE)
            assert torch.equal(shares, (x.float() * scale.reciprocal()).half())
            assert torch.equal(transposed, shares.t())
    for value in (math.inf, -math.inf, math.nan):
        x = normal(*shape)
        x[-1, -1] = value
        shares, transposed, scale = kernels.quantize(x, torch.float16, 448.0, SMALLEST_SCALE, transposed=False)
        assert transposed.numel() == 0
        assert not bool(scale.isfinite())
        assert bool((shares.float() * scale).isnan().all())


@needs_triton
@pytest.mark.parametrize("given", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize(("quantized", "largest"), [("fp8e4nv", E4M3.largest), ("fp8e5", E5M2.largest)])
def test_no_rounded_pair_is_both_packed_and_taken_apart(given: str, quantized: str, largest: float) -> None:
    """Compiled for Hopper, where Triton's assembler mixes up registers if one is."""
    interpreted.run(__file__, f"use_each_pair_in_one_way({given!r}, {quantized!r}, {largest})", interpret=False)


def use_each_pair_in_one_way(given: str, quantized: str, largest: float) -> None:
    """Assert that what is rounded is packed into words of 32 bits, and nothing else happens to it."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from gpuguide.precision.fp8 import kernels

    constants = {"LARGEST": largest, "SMALLEST_SCALE": SMALLEST_SCALE, "PARTS": kernels.PARTS, "TRANSPOSED": True}
    constants |= {"BITS": triton.language.uint8, "ROWS": kernels.TILE[0], "COLUMNS": kernels.TILE[1]}
    types = {
        "x": f"*{given}",
        "parts": "*i32",
        "values": f"*{quantized}",
        "transposed": f"*{quantized}",
        "scale": "*fp32",
    }
    names = kernels.quantize_kernel.arg_names
    signature = {name: "constexpr" if name in constants else types.get(name, "i32") for name in names}
    aligned = {(names.index(name),): [["tt.divisibility", 16]] for name in (*types, "rows", "columns")}
    compiled = triton.compile(
        ASTSource(kernels.quantize_kernel, signature, constants, aligned),
        target=GPUTarget("cuda", 90, 32),
        options={"num_warps": kernels.WARPS},
    )
    code = compiled.asm["ptx"]
    pairs = re.findall(r"cvt\.rn\.satfinite\.e\dm\dx2\.f32\s+(%rs\d+),", code)
    assert len(pairs) == len(set(pairs)) == kernels.TILE[0] * kernels.TILE[1] // (2 * 32 * kernels.WARPS)
    for pair in pairs:
        uses = [line for line in code.splitlines() if re.search(rf"{pair}\b", line) and "cvt" not in line]
        assert all(re.search(r"mov\.b32\s+%r\d+, \{", line) for line in uses), uses


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [*SHAPES, (512, 1024), (5000, 3000)], ids=str)
@pytest.mark.parametrize("format", [E4M3, E5M2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_kernels_give_the_bits_of_the_reference(
    fp8_gpu: torch.device, dtype: torch.dtype, format: FloatFormat, shape: tuple[int, int]
) -> None:
    x = normal(*shape).to(dtype)
    quantized, transposed = quantize_fp8_with_transpose(x.to(fp8_gpu), format)
    right = quantize_fp8(x, format)
    assert torch.equal(quantized.scales.cpu(), right.scales)
    assert torch.equal(quantized.values.cpu().view(torch.uint8), right.values.view(torch.uint8))
    assert torch.equal(transposed.values.view(torch.uint8), quantized.values.view(torch.uint8).t())
    alone = quantize_fp8(x.to(fp8_gpu).t(), format)
    assert torch.equal(alone.values.view(torch.uint8), transposed.values.view(torch.uint8))


@pytest.mark.gpu
@pytest.mark.parametrize("x", [torch.zeros(0, 48), normal(32, 48).double()], ids=["empty", "float64"])
def test_what_the_kernels_do_not_take_goes_to_the_reference(fp8_gpu: torch.device, x: torch.Tensor) -> None:
    """A GPU divides by a number in another way than a CPU, so a scale may differ in its last bit."""
    quantized, transposed = quantize_fp8_with_transpose(x.to(fp8_gpu))
    assert torch.equal(transposed.dequantize(), quantized.dequantize().t())
    right = quantize_fp8(x)
    torch.testing.assert_close(quantized.scales.cpu(), right.scales, rtol=1e-6, atol=0)
    torch.testing.assert_close(quantized.dequantize().cpu(), right.dequantize(), rtol=2**-3 + 1e-5, atol=0)


@pytest.mark.gpu
def test_kernels_that_are_kept_are_for_aligned_matrices_alone(fp8_gpu: torch.device) -> None:
    """Each size comes after one that the kernels were compiled for, and the last matrix begins between two words."""
    flat = normal(64 * 128 + 1).to(fp8_gpu)[1:]
    assert flat.data_ptr() % 16 == 4
    matrices = [normal(*shape).to(fp8_gpu) for shape in ((64, 128), (512, 256), (64, 120), (1024, 16))]
    for x in (*matrices, flat.view(64, 128), matrices[0] * 2):
        quantized, transposed = quantize_fp8_with_transpose(x)
        right = quantize_fp8(x.cpu())
        assert torch.equal(quantized.scales.cpu(), right.scales)
        assert torch.equal(quantized.values.cpu().view(torch.uint8), right.values.view(torch.uint8))
        assert torch.equal(transposed.values.view(torch.uint8), quantized.values.view(torch.uint8).t())


@pytest.mark.gpu
@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_what_is_not_finite_becomes_nan_on_a_gpu_too(fp8_gpu: torch.device, value: float) -> None:
    x = normal(300, 300)
    x[299, 299] = value
    assert bool(quantize_fp8(x.to(fp8_gpu)).dequantize().isnan().all())


@pytest.mark.gpu
def test_the_operator_is_one_of_pytorch(fp8_gpu: torch.device) -> None:
    arguments = (normal(64, 48).to(fp8_gpu), torch.float8_e4m3fn, E4M3.largest, SMALLEST_SCALE)
    for transposed in (True, False):
        torch.library.opcheck(torch.ops.gpuguide.quantize_fp8.default, (*arguments, transposed))


@pytest.mark.gpu
def test_a_layer_compiled_for_a_gpu_is_the_same(fp8_gpu: torch.device) -> None:
    layer, x = Fp8Linear(256, 128, device=fp8_gpu), normal(64, 256).to(fp8_gpu)
    compiled = torch.compile(layer, fullgraph=True)
    torch.testing.assert_close(compiled(x), layer(x))
    layer(x).square().sum().backward()
    assert layer.weight.grad is not None
    expected = layer.weight.grad.clone()
    layer.zero_grad()
    compiled(x).square().sum().backward()
    assert error(layer.weight.grad.cpu(), expected.cpu()) < 0.01


# --- on a GPU ------------------------------------------------------------------------------------------


@pytest.fixture
def fp8_gpu() -> torch.device:
    """A GPU that multiplies in fp8."""
    if torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("this GPU does not multiply in fp8")
    return torch.device("cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_tensor_cores_agree_with_the_reference(fp8_gpu: torch.device, dtype: torch.dtype) -> None:
    x = normal(128, 256).to(fp8_gpu, dtype)
    gradient = normal(128, 192, seed=2).to(fp8_gpu, dtype)
    layer = Fp8Linear(256, 192, bias=False, device=fp8_gpu)
    plain = Fp8Linear(256, 192, bias=False)
    plain.load_state_dict(layer.state_dict())
    one, other = x.clone().requires_grad_(), x.cpu().clone().requires_grad_()
    y, expected = layer(one), plain(other)
    y.backward(gradient)
    expected.backward(gradient.cpu())
    assert one.grad is not None
    assert other.grad is not None
    assert layer.weight.grad is not None
    assert plain.weight.grad is not None
    assert error(y.cpu(), expected) < 0.01
    assert error(one.grad.cpu(), other.grad) < 0.01
    assert error(layer.weight.grad.cpu(), plain.weight.grad) < 0.01


@pytest.mark.gpu
def test_sizes_that_tensor_cores_do_not_take_are_named(fp8_gpu: torch.device) -> None:
    layer = Fp8Linear(32, 16, device=fp8_gpu)
    with pytest.raises(ValueError, match="multiples of 16"):
        layer(torch.randn(3, 32, device=fp8_gpu)).sum().backward()


@pytest.mark.gpu
def test_a_gpu_without_fp8_is_refused_before_anything_runs() -> None:
    if torch.cuda.get_device_capability() >= (8, 9):
        pytest.skip("this GPU multiplies in fp8")
    with pytest.raises(ValueError, match="does not multiply in e4m3; it supports"):
        Fp8Linear(16, 16, device="cuda")
