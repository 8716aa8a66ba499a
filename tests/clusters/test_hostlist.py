"""Host names from Slurm's short form."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slurm_here import needs_slurm_programs, run_without_cluster

from gpuguide.clusters.hostlist import expand
from gpuguide.errors import GpuguideError

NAMED = {
    "n1": ["n1"],
    "n[1-3]": ["n1", "n2", "n3"],
    "gpu[008-010,7]": ["gpu008", "gpu009", "gpu010", "gpu7"],
    "a,b-ib[1,3]": ["a", "b-ib1", "b-ib3"],
    "rack[1-2]n[1-2]": ["rack1n1", "rack1n2", "rack2n1", "rack2n2"],
    "n[9-11]": ["n9", "n10", "n11"],
}


@pytest.mark.parametrize(("short", "names"), NAMED.items(), ids=NAMED)
def test_the_names_are_spelled_out(short: str, names: list[str]) -> None:
    assert expand(short) == names


@given(st.lists(st.integers(0, 2000), min_size=1, unique=True), st.integers(1, 5))
def test_listed_numbers_come_back_in_their_order(numbers: list[int], width: int) -> None:
    written = [str(number).zfill(width) for number in numbers]
    assert expand(f"n[{','.join(written)}]") == [f"n{number}" for number in written]


@given(st.integers(0, 500), st.integers(0, 40), st.integers(1, 4))
def test_a_range_is_its_numbers(first: int, count: int, width: int) -> None:
    start = str(first).zfill(width)
    names = expand(f"n[{start}-{first + count}]")
    assert [int(name[1:]) for name in names] == list(range(first, first + count + 1))
    assert len(names[0]) == 1 + len(start)


@pytest.mark.parametrize("wrong", ["", " ", "n[1-3", "n1]", "n[3-1]", "n[a-b]", "n[]", "a,,b", "a b", ",a", "n[[1]]"])
def test_what_is_no_list_is_named(wrong: str) -> None:
    with pytest.raises(GpuguideError) as caught:
        expand(wrong)
    assert repr(wrong) in str(caught.value)


@needs_slurm_programs
@pytest.mark.parametrize("short", NAMED)
def test_scontrol_gives_the_same(short: str, tmp_path: Path) -> None:
    assert expand(short) == run_without_cluster(tmp_path, "scontrol", "show", "hostnames", short).split()
