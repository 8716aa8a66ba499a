from __future__ import annotations

import pytest

from gpuguide.benchmarks.cross_entropy import profile
from gpuguide.benchmarks.cross_entropy.profile import ProfiledKernel
from gpuguide.hardware import device as devices
from gpuguide.measure import benchmark as declarations

PROFILE = declarations.get("linear-cross-entropy-profile")


def step(chunks: int, gap: float = 0.0) -> list[ProfiledKernel]:
    """Return the kernels of a step: a fill, then for each chunk its logits, the loss, and both gradients."""
    times = [("Memset (Device)", 1.0)]
    times += [
        ("nvjet_tst_128x256", 3.0),
        ("liger_cross_entropy_kernel", 2.0),
        ("sm90_xmma_gemm", 4.0),
        ("nvjet", 5.0),
    ] * chunks
    found, now = [], 10.0
    for name, seconds in times:
        found.append(ProfiledKernel(name, now, seconds))
        now += seconds + gap
    return found


def test_products_are_told_apart_by_their_order() -> None:
    assert profile.classify_kernels(step(2)) == ["other", *["logits", "loss", "d_hidden", "d_head"] * 2]


def test_exponentials_come_in_place_of_logits_and_the_gradient_of_the_head_before_the_other() -> None:
    chunk = ["exp_matmul_kernel", "recenter_kernel", "finish_rows_kernel", "nvjet", "gemm", "multiply_rows_kernel"]
    found = [ProfiledKernel(name, float(at), 1.0) for at, name in enumerate(["target_logit_kernel", *chunk, *chunk])]
    kinds = ["logits", "loss", "loss", "d_head", "d_hidden", "loss"]
    assert profile.classify_kernels(found) == ["loss", *kinds, *kinds]
    assert profile.seconds_by_kind(found)["loss"] == 7


@pytest.mark.parametrize(("chunks", "gap"), [(1, 0.0), (3, 0.5)])
def test_the_times_of_all_kinds_and_of_waiting_are_the_whole_step(chunks: int, gap: float) -> None:
    found = profile.seconds_by_kind(step(chunks, gap))
    assert found == pytest.approx(
        {
            "other": 1,
            "logits": 3 * chunks,
            "loss": 2 * chunks,
            "d_hidden": 4 * chunks,
            "d_head": 5 * chunks,
            "waiting": 4 * chunks * gap,
        }
    )


def test_kernels_that_cannot_be_told_apart_are_refused() -> None:
    for wrong in (step(2)[:-1], step(0), [*step(1), ProfiledKernel("gemm", 99.0, 1.0)]):
        with pytest.raises(ValueError, match="three to one were expected"):
            profile.seconds_by_kind(wrong)


@pytest.mark.gpu
@pytest.mark.parametrize("name", list(PROFILE.contenders))
def test_the_kinds_add_up_on_a_gpu(name: str) -> None:
    device = devices.current()
    if reason := declarations.find_missing_library(PROFILE.contenders[name], device):
        pytest.skip(reason)
    work = PROFILE.contenders[name].build(device, {"tokens": 1024, "hidden": 256, "vocab": 8192, "chunk": 128})
    assert work.check is not None
    work.check()
    found = work.further()
    assert all(metric.samples and min(metric.samples) >= 0 for metric in found.values())
    assert min(found["d_head_time"].samples) > 0
