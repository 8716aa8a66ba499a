from __future__ import annotations

import multiprocessing
import os
import socket
import time
from collections.abc import Iterator
from multiprocessing import connection
from typing import Any

import pytest
import rank_functions as ranks
import torch

from gpuguide.errors import GpuguideError
from gpuguide.interconnect.processes import Team

AT_ONCE = 60.0
"""Seconds within which a failure must be known, with much to spare on a busy machine; collectives wait for 600"""


@pytest.fixture(scope="module")
def team() -> Iterator[Team]:
    with Team(2, device="cpu") as team:
        yield team


def test_every_rank_knows_who_it_is(team: Team) -> None:
    assert team.run(ranks.whoami) == [(0, 2, "cpu", "0"), (1, 2, "cpu", "1")]


def test_ranks_reach_each_other(team: Team) -> None:
    assert team.run(ranks.total, 0.5) == [2.0, 2.0]


def test_what_is_kept_is_there_later(team: Team) -> None:
    team.run(ranks.remember, "x" * 10**6)
    assert team.run(ranks.recall) == [("x" * 10**6, 0), ("x" * 10**6, 1)]


def test_times_of_ranks_are_combined_by_the_maximum(team: Team) -> None:
    assert team.slowest(ranks.own_time) == 2.0


def test_one_rank_is_a_team(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process that imports all by itself, as users have it."""
    monkeypatch.setattr(multiprocessing, "get_context", multiprocessing.context._default_context.get_context)
    with Team(1, device="cpu") as alone:
        assert alone.run(ranks.total, 3.0) == [3.0]
    assert not alone.is_running


def has_ended(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (ranks.die, r"Rank 1 of 2 died while running die \(exit status 7\)\."),
        (ranks.read_past_the_end, r"Rank 1 of 2 failed while running read_past_the_end: EOFError: .*\. The other"),
        (
            ranks.fail,
            r"Rank 1 of 2 failed while running fail: ValueError: the width 10 cannot be divided by 4\. The other",
        ),
    ],
)
def test_a_rank_that_dies_or_raises_ends_the_others_at_once(function: object, said: str) -> None:
    with Team(2, device="cpu", time_limit=600) as team:
        finished = team.run(ranks.total, 1.0)
        processes = [process.pid or 0 for process in team.processes]
        begun = time.monotonic()
        with pytest.raises(GpuguideError, match=said) as error:
            team.run(function, 1)  # type: ignore[arg-type]
        assert time.monotonic() - begun < AT_ONCE
        assert "other ranks were stopped" in str(error.value)
        assert all(map(has_ended, processes))
        assert finished == [3.0, 3.0]
        assert not team.is_running
        with pytest.raises(GpuguideError, match="has ended; start a new one"):
            team.run(ranks.total, 1.0)


def test_a_death_that_others_noticed_is_what_is_told() -> None:
    with (
        Team(2, device="cpu") as team,
        pytest.raises(GpuguideError, match=r"Rank 1 of 2 died while running \w+ \(exit status 7\)"),
    ):
        team.run(ranks.die_after_others_noticed, 1)


def test_the_first_to_raise_is_told_of_where_both_are_heard_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    wait = connection.wait

    def wait_for_all(pipes: Any, timeout: float) -> Any:
        time.sleep(0.5)
        return wait(pipes, timeout)

    with Team(2, device="cpu") as team:
        monkeypatch.setattr(connection, "wait", wait_for_all)
        with pytest.raises(GpuguideError, match=r"Rank 1 of 2 failed while running .*: ValueError: the width 10"):
            team.run(ranks.fail_one_after_the_other, 1)


def test_a_rank_that_does_not_answer_is_stopped_after_the_limit() -> None:
    with Team(2, device="cpu", time_limit=1) as team:
        begun = time.monotonic()
        with pytest.raises(GpuguideError, match="Rank 0 did not answer within 1 s while running hang"):
            team.run(ranks.hang, 0)
        assert time.monotonic() - begun < AT_ONCE


def test_a_port_in_use_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(GpuguideError, match=f"cannot meet at port {port}: it is in use"):
            Team(1, device="cpu", port=port)


def test_two_teams_at_once_do_not_meet(team: Team) -> None:
    with Team(1, device="cpu") as other:
        assert other.store.port != team.store.port
        assert other.run(ranks.total, 0.0) == [0.0]


def test_copies_of_this_process_are_ranks_too() -> None:
    with Team(4, device="cpu", start="fork") as team:
        assert team.run(ranks.total, 0.0) == [6.0] * 4
        processes = [process.pid or 0 for process in team.processes]
        with pytest.raises(GpuguideError, match=r"Rank 2 of 4 died while running die \(exit status 7\)"):
            team.run(ranks.die, 2)
    assert all(map(has_ended, processes))


def test_copies_end_with_the_process_that_asks() -> None:
    """Each has closed the ends of pipes that it got with its copy."""
    team = Team(2, device="cpu", start="fork")
    processes = list(team.processes)
    for pipe in team.pipes:
        pipe.close()
    for process in processes:
        process.join(AT_ONCE)
        assert process.exitcode == 0


def test_ways_to_start_that_cannot_be_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(GpuguideError, match="cannot use its GPU"):
        Team(2, start="fork")
    with pytest.raises(GpuguideError, match="Did you mean fork"):
        Team(2, device="cpu", start="forkk")


def test_more_processes_than_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(GpuguideError, match="2 processes need 2 GPUs, and PyTorch sees 1"):
        Team(2)
    with pytest.raises(GpuguideError, match="one process or more, and 0"):
        Team(0, device="cpu")


@pytest.mark.gpu
def test_ranks_on_gpus_reach_each_other() -> None:
    count = min(2, torch.cuda.device_count())
    with Team(count) as team:
        assert team.run(ranks.whoami)[-1][2] == f"cuda:{count - 1}"
