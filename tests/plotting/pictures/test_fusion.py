"""Drawings of kernels and launches: what they show follows from their numbers."""

from __future__ import annotations

from itertools import pairwise

import pytest
from figure_rows import rows_of

from gpuguide import plotting
from gpuguide.fusion import cost
from gpuguide.plotting import interactive
from gpuguide.plotting.pictures import fusion as pictures


def test_only_launches_leave_gaps() -> None:
    rows = rows_of(pictures.three_limits())
    for limit in pictures.LANES:
        lane = [row for row in rows if row["limit"] == limit]
        gaps = [float(late["begins"]) - float(early["ends"]) for early, late in pairwise(lane)]
        assert (min(gaps) > 0.5) if limit == "launches" else (max(gaps) < 1e-9)
        assert all(float(row["begins"]) >= float(row["launched"]) for row in lane)


def test_four_kernels_make_eleven_trips_and_one_makes_five() -> None:
    rows = rows_of(pictures.four_kernels_or_one())
    trips = {"1": 0, "4": 0}
    for row in rows:
        trips[row["kernels"]] += int(row["reads"]) + int(row["writes"])
    assert trips == {"4": 11, "1": 5}


@pytest.mark.parametrize("name", interactive.CHAINS)
@pytest.mark.parametrize("elements", [2**10, 2**20, 2**28])
def test_the_limits_that_one_can_try_are_those_of_the_library(name: str, elements: int) -> None:
    machine = plotting.limits_to_try().interactive["machine"]  # type: ignore[index]
    of_library = cost.Machine(machine["launch"], machine["graph"], machine["bandwidth"], machine["arithmetic"])
    shown = interactive.chain_limits(machine, elements, 24, name)
    kernels = 1 if "fused" in name else 24
    moved, flops = 2 * kernels * elements * interactive.BF16, elements * 24
    right = cost.limits(kernels, moved, flops, of_library, graph="graph" in name)
    assert list(shown.values()) == pytest.approx([right.launches, right.bytes, right.flops])
