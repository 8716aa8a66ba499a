from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuguide.collectives.cost import RING
from gpuguide.collectives.ring import steps
from gpuguide.collectives.ring_times import RingTimes, Times, count_work, fit_ring_times, predict_left_out
from gpuguide.errors import GpuguideError
from gpuguide.measure import store

KIB, MIB, GIB = 2**10, 2**20, 2**30
SIZES = (4 * KIB, 64 * KIB, MIB, 16 * MIB, 64 * MIB, 256 * MIB, GIB)


def measured(size: int) -> Times:
    """Return the times of NCCL's collectives on two and on four GPUs."""
    records = {2: store.load_published("collectives"), 4: store.load_published("collectives", "4x")}
    return {
        (name, gpus): record.median("nccl", "time", collective=name, size=size)
        for name in RING
        for gpus, record in records.items()
    }


def error_left_out(size: int) -> float:
    """Return the largest relative error of a collective that a fit has not seen."""
    times = measured(size)
    return max(abs(time / times[key] - 1) for key, time in predict_left_out(times).items())


@pytest.mark.parametrize(("size", "most"), [(64 * MIB, 0.10), (256 * MIB, 0.08), (GIB, 0.055)])
def test_large_collectives_are_predicted_from_the_others_of_our_records(size: int, most: float) -> None:
    assert error_left_out(size) < most


@pytest.mark.parametrize("size", SIZES)
def test_small_ones_are_predicted_less_well_but_never_worse_than_by_a_fifth(size: int) -> None:
    assert error_left_out(size) < 0.20


@given(*[st.floats(1e-6, 1e-3) for _ in range(4)])
def test_exact_times_of_what_was_left_out_are_found(fixed: float, step: float, link: float, alone: float) -> None:
    right = RingTimes(fixed, step, link, alone)
    times = {(name, gpus): right.time(name, gpus) for name in RING for gpus in (2, 4)}
    assert predict_left_out(times) == pytest.approx(times, rel=1e-6)


@pytest.mark.parametrize("left_out", RING)
def test_the_times_of_a_collective_left_out_do_not_change_its_prediction(left_out: str) -> None:
    times = measured(GIB)
    wrong = {key: time * (9 if key[0] == left_out else 1) for key, time in times.items()}
    right, found = predict_left_out(times), predict_left_out(wrong)
    for gpus in (2, 4):
        assert found[left_out, gpus] == right[left_out, gpus]


def test_no_term_is_below_zero() -> None:
    for size in SIZES:
        fit = fit_ring_times(measured(size))
        assert min(fit.fixed, fit.step, fit.link, fit.alone) >= 0


@pytest.mark.parametrize("gpus", [2, 3, 8])
def test_the_counts_are_those_of_the_ring_that_is_written_by_hand(gpus: int) -> None:
    sends = len(list(steps(0, gpus)))
    assert count_work("all-reduce", gpus) == (1, sends + 1, pytest.approx(sends / gpus), 1 / gpus)
    gather, scatter = count_work("all-gather", gpus), count_work("reduce-scatter", gpus)
    assert gather == scatter
    assert count_work("all-reduce", gpus)[2] == pytest.approx(gather[2] + scatter[2])


def test_collectives_that_are_too_alike_and_wrong_times_are_named() -> None:
    alike = {(name, gpus): 1.0 for name in ("broadcast", "reduce") for gpus in (2, 4)}
    with pytest.raises(GpuguideError, match="do not tell the four terms apart"):
        fit_ring_times(alike)
    with pytest.raises(GpuguideError, match="do not tell"):
        fit_ring_times({})
    with pytest.raises(GpuguideError, match="not above zero"):
        fit_ring_times({**measured(GIB), ("reduce", 2): 0.0})
    with pytest.raises(GpuguideError, match="Did you mean all-reduce"):
        count_work("allreduce", 2)
