from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpuguide.interconnect as interconnect
from gpuguide.errors import GpuguideError
from gpuguide.interconnect import AlphaBeta, errors_left_out, fit_alpha_beta, fit_protocols, time_to_move
from gpuguide.measure import store

SIZES = [2**power for power in range(12, 33)]


@given(st.floats(1e-7, 1e-3), st.floats(1e8, 1e12))
def test_an_exact_line_is_found(alpha: float, bandwidth: float) -> None:
    found = fit_alpha_beta((size, alpha + size / bandwidth) for size in SIZES)
    times = [alpha + size / bandwidth for size in SIZES]
    assert [found.time(size) for size in SIZES] == pytest.approx(times, rel=1e-6)
    for each in errors_left_out(zip(SIZES, times, strict=True)):
        assert abs(each.error) < 1e-3


def test_latency_and_bandwidth_with_noise_and_one_slow_sample() -> None:
    noise = np.random.default_rng(3).uniform(0.98, 1.02, len(SIZES))
    times = noise * [8e-6 + size / 55e9 for size in SIZES]
    times[10] *= 5
    found = fit_alpha_beta(zip(SIZES, times, strict=True))
    assert found.alpha == pytest.approx(8e-6, rel=0.05)
    assert found.bandwidth == pytest.approx(55e9, rel=0.05)
    assert found.half_size == pytest.approx(found.alpha * found.bandwidth)
    assert found.time(found.half_size) == pytest.approx(2 * found.alpha)
    # Least squares follows the slow sample, which is why it is not used.
    _, intercept = np.polyfit(SIZES, times, 1)
    assert abs(intercept / 8e-6 - 1) > 0.5


def test_no_other_line_fits_better() -> None:
    draw = np.random.default_rng(4)
    times = draw.uniform(0.7, 1.4, len(SIZES)) * [1e-5 + size / 2e10 for size in SIZES]
    found = fit_alpha_beta(zip(SIZES, times, strict=True))

    def total(alpha: float, beta: float) -> float:
        return float(np.abs((alpha + beta * np.array(SIZES)) / times - 1).sum())

    best = total(found.alpha, found.beta)
    for _ in range(2000):
        alpha, beta = found.alpha * draw.lognormal(0, 0.2), found.beta * draw.lognormal(0, 0.2)
        assert total(alpha, beta) >= best * (1 - 1e-12)


def test_latency_is_never_below_zero() -> None:
    found = fit_alpha_beta([(1e6, 1e-5), (2e6, 3e-5), (4e6, 7e-5)])
    assert found.alpha >= 0
    assert found.beta > 0


def test_of_each_size_the_median_counts() -> None:
    samples = [(10**3, 1.0), (10**3, 1e-5), (10**3, 1e-5), (10**9, 0.02 + 1e-5), (0, 1e-5)]
    found = fit_alpha_beta(samples)
    assert found.alpha == pytest.approx(1e-5, rel=0.02)
    assert found.bandwidth == pytest.approx(50e9, rel=0.02)


def test_what_is_left_out_is_not_used() -> None:
    times = [1e-5 + size / 5e10 for size in SIZES]
    times[-1] *= 2
    last = errors_left_out(zip(SIZES, times, strict=True))[-1]
    assert (last.size, last.measured) == (SIZES[-1], times[-1])
    assert last.error == pytest.approx(-0.5, abs=1e-6)


@pytest.mark.parametrize(
    ("samples", "says"),
    [
        ([], "Fewer than two sizes, here 0, do not say what latency is"),
        ([(1, 1.0), (1, 2.0)], "Fewer than two sizes, here 1,"),
        ([(-1, 1.0), (2, 2.0)], "-1 bytes in 1.0 s cannot be"),
        ([(1, 0.0), (2, 2.0)], "1 bytes in 0.0 s cannot be"),
        ([(1, float("nan")), (2, 2.0)], "in nan s cannot be"),
        ([(float("inf"), 1.0), (2, 2.0)], "inf bytes"),
        ([(10, 5.0), (20, 4.9), (40, 4.8)], "do not grow with the sizes"),
    ],
)
def test_samples_that_say_nothing_are_refused(samples: list[tuple[float, float]], says: str) -> None:
    with pytest.raises(GpuguideError, match=says):
        fit_alpha_beta(samples)


PROTOCOLS = (AlphaBeta(5e-6, 1 / 100e9), AlphaBeta(20e-6, 1 / 300e9), AlphaBeta(200e-6, 1 / 350e9))
"""Roughly what NCCL's times on two GPUs show; they cross at 2.25 MB and at 378 MB"""


def of_protocols(size: float) -> float:
    """Return the time of the fastest protocol."""
    return min(protocol.time(size) for protocol in PROTOCOLS)


def test_each_protocol_has_its_line_and_the_breakpoints_are_found() -> None:
    found = fit_protocols((size, of_protocols(size)) for size in SIZES)
    assert [line.alpha for line in found.lines] == pytest.approx([each.alpha for each in PROTOCOLS], rel=1e-6)
    assert [line.beta for line in found.lines] == pytest.approx([each.beta for each in PROTOCOLS], rel=1e-6)
    assert found.breakpoints == pytest.approx([2.25e6, 378e6], rel=1e-6)
    for size in (*SIZES, *found.breakpoints, 10**4, 10**10):
        assert found.time(size) == pytest.approx(of_protocols(size), rel=1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_a_size_left_out_beside_a_breakpoint_is_predicted_by_lines_and_not_by_one(seed: int) -> None:
    noise = np.random.default_rng(seed).uniform(0.98, 1.02, len(SIZES))
    samples = [(size, of_protocols(size) * factor) for size, factor in zip(SIZES, noise, strict=True)]
    inner = errors_left_out(samples, protocols=3)[1:-1]
    assert max(abs(each.error) for each in inner) < 0.06
    assert max(abs(each.error) for each in errors_left_out(samples)[1:-1]) > 0.2


@pytest.mark.parametrize("contender", ["nccl", "nccl-unmixed"])
def test_three_lines_predict_a_size_of_our_record_that_they_have_not_seen(contender: str) -> None:
    times = store.load_published("all-reduce").series(contender, "size", "time")
    samples = [(size, time.median) for size, time in times if size >= 2**16]
    assert max(abs(each.error) for each in errors_left_out(samples, protocols=3)[1:-1]) < 0.12


def test_more_lines_than_there_are_protocols_change_nothing() -> None:
    samples = [(size, PROTOCOLS[0].time(size)) for size in SIZES]
    found = fit_protocols(samples, protocols=3)
    assert [found.time(size) for size in SIZES] == pytest.approx([time for _, time in samples], rel=1e-9)
    assert fit_protocols(samples, protocols=1).lines == (fit_alpha_beta(samples),)
    assert fit_protocols(samples, protocols=1).breakpoints == ()


@given(st.lists(st.floats(1e-6, 1e-1), min_size=7, max_size=12))
def test_any_times_give_lines_in_order_or_an_error(times: list[float]) -> None:
    samples = [(2.0 ** (10 + place), time) for place, time in enumerate(sorted(times))]
    try:
        found = fit_protocols(samples, protocols=3)
    except GpuguideError:
        return
    assert 1 <= len(found.lines) <= 3
    assert list(found.breakpoints) == sorted(found.breakpoints)
    assert [line.beta for line in found.lines] == sorted((line.beta for line in found.lines), reverse=True)


def test_too_few_sizes_for_so_many_lines_are_refused() -> None:
    growing = [(2.0**power, 1e-6 * 2.0**power) for power in range(5)]
    with pytest.raises(GpuguideError, match="3 lines need 6 sizes, not 5"):
        fit_protocols(growing)
    with pytest.raises(GpuguideError, match="The number of protocols is 0"):
        fit_protocols(growing, protocols=0)
    with pytest.raises(GpuguideError, match="do not grow with the sizes in 2 runs"):
        fit_protocols([(size, 1.0) for size, _ in growing], protocols=2)
    with pytest.raises(GpuguideError, match="1 lines need more than 2 sizes, not 2"):
        errors_left_out(growing[:2])
    with pytest.raises(GpuguideError, match="2 lines need more than 4 sizes, not 4"):
        errors_left_out(growing[:4], protocols=2)


def test_a_fit_takes_the_place_of_a_link() -> None:
    found = fit_protocols((size, of_protocols(size)) for size in SIZES)
    assert time_to_move(2**20, found) == found.time(2**20)
    assert time_to_move(2**20, found.lines[0]) == found.lines[0].time(2**20)


def test_the_face_has_what_it_says() -> None:
    for name in interconnect.__all__:
        assert getattr(interconnect, name).__doc__
        assert name in dir(interconnect)
    assert AlphaBeta(1e-6, 1e-9).bandwidth == pytest.approx(1e9)
