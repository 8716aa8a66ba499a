"""Element-wise chains in one kernel against float64: interpreted, and on a GPU."""

from __future__ import annotations

import math

import interpreted
import pytest
import torch
from interpreted import needs_triton

from gpuguide.fusion import reference

NAMES = {"add_four": 4, "add_multiply_relu_divide": 4, "tanh_chain": 3, "gelu": 1}
"""Names of the functions, and how many arrays each takes"""


def compare(name: str, n: int, dtype_name: str, device: str) -> None:
    from gpuguide.fusion import elementwise

    dtype: torch.dtype = getattr(torch, dtype_name)
    inputs = [(torch.rand(n, device=device) + 0.5).to(dtype) for number in range(NAMES[name])]
    right = getattr(reference, name)(*(each.double() for each in inputs))
    found = getattr(elementwise, name)(*inputs)
    assert found.dtype == dtype
    tolerance = 1e-5 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(found.double(), right, rtol=tolerance, atol=tolerance)


def test_gelu_is_pytorchs() -> None:
    x = torch.linspace(-6, 6, 101, dtype=torch.float64)
    torch.testing.assert_close(reference.gelu(x), torch.nn.functional.gelu(x, approximate="tanh"))


@needs_triton
@pytest.mark.parametrize("name", NAMES)
def test_kernels(name: str) -> None:
    interpreted.run(__file__, f"compare({name!r}, 2049 + 7, 'float32', 'cpu')")


def check_bad_input() -> None:
    from gpuguide.fusion import elementwise

    a = torch.zeros(4, 6)
    for other, named in ((a[:2], r"\(2, 6\)"), (a.half(), "float16"), (torch.zeros(6, 4).t(), "contiguous")):
        with pytest.raises(ValueError, match=named):
            elementwise.add_four(a, a, other, a)
    assert elementwise.gelu(torch.zeros(0)).shape == (0,)
    for dtype in (torch.float64, torch.int64):
        with pytest.raises(TypeError, match=str(dtype)):
            elementwise.gelu(torch.zeros(4, dtype=dtype))
    with pytest.raises(NotImplementedError, match="no_grad"):
        elementwise.gelu(torch.zeros(4, requires_grad=True))
    with torch.no_grad():
        elementwise.gelu(torch.zeros(4, requires_grad=True))
    with pytest.raises(NotImplementedError, match="no_grad"):
        torch.func.jvp(elementwise.gelu, (torch.zeros(4),), (torch.ones(4),))


def check_relu_of_nan() -> None:
    """The interpreter's maximum passes NaN on in either case, so look at the code for a GPU."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from gpuguide.fusion import elementwise

    kernel = elementwise.elementwise_kernel
    constants = {"FUNCTION": elementwise.add_mul_relu_div, "INPUTS": 4, "BLOCK": 1024}
    types = {name: "*fp32" if name.endswith("ptr") else "i32" for name in kernel.arg_names}
    signature = types | dict.fromkeys(constants, "constexpr")
    compiled = triton.compile(ASTSource(kernel, signature, constants), target=GPUTarget("cuda", 90, 32))
    assert "max.NaN.f32" in compiled.asm["ptx"]


@needs_triton
def test_relu_of_nan_is_nan() -> None:
    interpreted.run(__file__, "check_relu_of_nan()", interpret=False)


@needs_triton
def test_bad_input() -> None:
    interpreted.run(__file__, "check_bad_input()")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", NAMES)
def test_on_a_gpu(name: str, dtype: str) -> None:
    compare(name, 2**20 + 3, dtype, "cuda")


@pytest.mark.gpu
def test_relu_of_nan_on_a_gpu() -> None:
    from gpuguide.fusion import elementwise

    a, one = torch.tensor([math.nan, -1.0, 1.0], device="cuda"), torch.ones(3, device="cuda")
    found = elementwise.add_multiply_relu_divide(a, one, one, one)
    assert found.isnan().tolist() == [True, False, False]
    assert found[1:].tolist() == [0.0, 2.0]


@pytest.mark.gpu
def test_more_elements_than_an_int32_can_number() -> None:
    from gpuguide.fusion import elementwise

    x = torch.zeros(2**31 + 5, dtype=torch.bfloat16, device="cuda")
    x[-3:] = torch.tensor([1.0, 2.0, 3.0])
    found = elementwise.gelu(x)[-4:]
    torch.testing.assert_close(found, reference.gelu(x[-4:].float()).bfloat16())
