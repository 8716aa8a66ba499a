"""Stripes, bandwidth and opens of a parallel file system."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuguide.clusters.storage import MIB, seconds_to_open, seconds_to_transfer, stripes_of
from gpuguide.errors import GpuguideError


@given(st.integers(0, 10**4), st.integers(0, 10**4), st.integers(1, 500), st.integers(1, 9))
def test_every_byte_is_on_the_target_whose_turn_it_is(offset: int, size: int, stripe: int, count: int) -> None:
    parts = list(stripes_of(offset, size, stripe_size=stripe, stripe_count=count))
    targets = [part.target for part in parts for _ in range(part.size)]
    assert targets == [byte // stripe % count for byte in range(offset, offset + size)]
    assert all(before.offset + before.size == after.offset for before, after in itertools.pairwise(parts))


def test_the_slower_side_limits() -> None:
    by_targets = seconds_to_transfer(100e9, stripe_count=4, target_rate=5e9, clients=64, client_rate=25e9)
    by_clients = seconds_to_transfer(100e9, stripe_count=100, target_rate=5e9, clients=1, client_rate=25e9)
    assert (by_targets, by_clients) == (5, 4)
    assert seconds_to_transfer(100e9, stripe_count=1, target_rate=5e9) == 20


def test_opens_wait_for_the_server_or_for_one_another() -> None:
    assert seconds_to_open(10**6, latency=1e-3) == pytest.approx(1000)
    assert seconds_to_open(10**6, latency=1e-3, at_once=100, opens_per_second=50_000) == pytest.approx(20)
    assert seconds_to_open(0, latency=1) == 0


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: list(stripes_of(-1, 1, stripe_size=MIB, stripe_count=1)), "offset"),
        (lambda: list(stripes_of(0, 1, stripe_size=0, stripe_count=1)), "stripe_size"),
        (lambda: list(stripes_of(0, 1, stripe_size=1, stripe_count=0)), "stripe_count"),
        (lambda: seconds_to_transfer(1, stripe_count=1, target_rate=0), "target_rate"),
        (lambda: seconds_to_transfer(1, stripe_count=1, target_rate=1, client_rate=-math.inf), "client_rate"),
        (lambda: seconds_to_open(1, latency=1, at_once=0), "at_once"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(call: Callable[[], object], name: str) -> None:
    with pytest.raises(GpuguideError, match=f"^{name} "):
        call()
