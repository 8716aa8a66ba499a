"""Ranks on a processor, and what they run in tests."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuguide.interconnect.processes import Team

sys.path.insert(0, str(Path(__file__).parent))

import collective_ranks  # noqa: F401  copies of this process know it then


@pytest.fixture(scope="module", params=[2, 3, 4, 8])
def team(request: pytest.FixtureRequest) -> Iterator[Team]:
    """Two, four and eight ranks, as machines have GPUs, and three, whose parts are not powers of two."""
    with Team(request.param, "cpu", start="fork") as team:
        yield team


@pytest.fixture
def two() -> Iterator[Team]:
    """Two ranks of a test's own, which may end them."""
    with Team(2, "cpu", start="fork", time_limit=60) as team:
        yield team
