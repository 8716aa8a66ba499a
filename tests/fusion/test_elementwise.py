"""Element-wise chains in one kernel against float64: interpreted, and on a GPU."""

from __future__ import annotations

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


@needs_triton
def test_bad_input() -> None:
    interpreted.run(__file__, "check_bad_input()")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", NAMES)
def test_on_a_gpu(name: str, dtype: str) -> None:
    compare(name, 2**20 + 3, dtype, "cuda")
