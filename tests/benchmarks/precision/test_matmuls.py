from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from fake_devices import on

from gpuguide.benchmarks.precision import matmuls
from gpuguide.benchmarks.precision.matmuls import FORMATS, Operands
from gpuguide.hardware import device as devices
from gpuguide.measure import benchmark as declarations
from gpuguide.measure.benchmark import find_skip_reason, too_large

MATMUL = declarations.get("matmul-precision")
every_format = pytest.mark.parametrize("format", FORMATS)


def keys_of(format: str, rows: int = 48, inner: int = 256, columns: int = 80) -> dict[str, int | str]:
    return {"format": format, "rows": rows, "inner": inner, "columns": columns}


@pytest.mark.parametrize(("gigabytes", "left_out"), [(4, 10), (8, 6), (16, 0)])
def test_what_does_not_fit_is_left_out(gigabytes: int, left_out: int) -> None:
    device = on(gigabytes)
    assert sum(bool(too_large(MATMUL, keys, device)) for keys in MATMUL.cases(device)) == left_out


@pytest.mark.parametrize(
    ("gpu", "format", "contender", "reason"),
    [
        ("t4", "bf16", "torch", "needs bf16, which compute capability 7.5"),
        ("t4", "fp32", "torch", None),
        ("h100-sxm", "tf32", "gpuguide", "our matmul supports fp16, bf16 and fp8"),
        ("a100-sxm-80gb", "fp8", "gpuguide", "needs fp8, which compute capability 8.0"),
        ("h100-sxm", "fp8", "gpuguide", None),
    ],
)
def test_a_format_that_a_gpu_lacks_is_named(gpu: str, format: str, contender: str, reason: str | None) -> None:
    found = find_skip_reason(MATMUL, contender, keys_of(format), devices.fake(gpu))
    assert found is None if reason is None else reason in str(found)


@every_format
def test_a_small_product_is_right_and_its_error_is_that_of_the_format(format: str) -> None:
    torch.manual_seed(0)
    device = devices.cpu()
    work = matmuls.work(matmuls.multiply_torch, device, keys_of(format))
    assert work.check is not None
    work.check()
    (error,) = work.further()["error"].samples
    low, high = {"fp32": (1e-8, 1e-5), "tf32": (1e-8, 1e-3), "fp16": (1e-4, 1e-3), "bf16": (1e-3, 5e-3)}.get(
        format, (1e-2, 5e-2)
    )
    assert low < error < high
    assert work.rates["throughput"].per_call == 2 * 48 * 256 * 80
    for call in work.calls:
        assert call().shape == (48, 80)  # type: ignore[attr-defined]


@every_format
@pytest.mark.parametrize("wrong", ["one row", "not finite", "scaled"])
def test_a_wrong_product_is_found(format: str, wrong: str) -> None:
    def multiply(operands: Operands) -> torch.Tensor:
        result = matmuls.multiply_torch(operands).float()
        if wrong == "one row":
            result[0] = 0
        elif wrong == "not finite":
            result[7, 3] = float("nan")  # in a row that is compared with nothing
        else:
            result *= 1.05
        return result

    torch.manual_seed(0)
    work = matmuls.work(multiply, devices.cpu(), keys_of(format, rows=300))
    assert work.check is not None
    with pytest.raises(AssertionError, match="the relative error is"):
        work.check()


def test_small_matrices_come_in_so_many_sets_that_none_stays_in_the_cache() -> None:
    device = replace(devices.cpu(), l2=2**20)
    work = matmuls.work(matmuls.multiply_torch, device, keys_of("fp32", 128, 128, 128))
    assert work.footprint == 3 * 4 * 128**2
    assert len(work.calls) * work.footprint > 2 * device.l2
    assert len(matmuls.work(matmuls.multiply_torch, device, keys_of("fp32", 1024, 1024, 1024)).calls) == 1


@pytest.mark.gpu
@every_format
@pytest.mark.parametrize("name", list(MATMUL.contenders))
def test_every_contender_is_right_or_skipped_with_a_reason(name: str, format: str) -> None:
    device = devices.current()
    keys = keys_of(format, 1000, 768, 2304)
    if why := find_skip_reason(MATMUL, name, keys, device):
        pytest.skip(why)
    work = MATMUL.contenders[name].build(device, keys)
    assert work.check is not None
    work.check()
    assert work.further()["error"].samples[0] < 0.05
