"""Recorded sessions: what they hold, and that a real Slurm still says the same."""

from __future__ import annotations

import itertools
import os
import re
from pathlib import Path

import pytest
from slurm_here import needs_slurm

from gpuguide.clusters import sessions
from gpuguide.clusters.local_slurm import LocalSlurm, find_obstacle
from gpuguide.errors import GpuguideError

QUICK = {"hello", "missing-folder", "backfill"}
"""Played by every run of the tests, in seconds; the others wait for Slurm's delays or import PyTorch, for minutes"""


@pytest.mark.parametrize("name", sessions.SESSIONS)
def test_a_recording_says_who_recorded_it_and_names_no_machine(name: str) -> None:
    recording = sessions.read(name)
    assert recording.name == name
    assert re.fullmatch(r"\d\d\.\d\d\.\d+", recording.slurm)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", recording.recorded)
    assert recording.transcript.startswith("$ sbatch")
    assert recording.files
    assert os.uname().nodename not in re.split(r"\W+", recording.transcript) or os.uname().nodename in {"n1", "login"}
    assert "/tmp" not in recording.transcript
    seconds = [event.seconds for event in recording.events]
    assert seconds == sorted(seconds)


def test_a_recording_is_written_and_read_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recording = sessions.read("backfill")
    sessions.store(recording, tmp_path)
    monkeypatch.setattr(sessions, "RECORDINGS", tmp_path)
    assert sessions.read("backfill") == recording


def test_what_is_not_recorded_is_named() -> None:
    with pytest.raises(GpuguideError, match="backfill"):
        sessions.read("backfil")
    with pytest.raises(GpuguideError, match="job 1 was not 9 times RUNNING"):
        sessions.read("hello").seconds(1, "RUNNING", 9)


def test_stays_follow_one_another() -> None:
    stays = sessions.read("train-and-resume").stays({1: "train"})
    assert [bool(nodes) for _, nodes, _, _ in stays] == [False, True, False, True]
    assert all(job == "train" and len(nodes) in (0, 2) for job, nodes, _, _ in stays)
    for (*_, end), (_, _, start, _) in itertools.pairwise(stays):
        assert end == start


@needs_slurm
@pytest.mark.apart
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.thorough]) for name in sessions.SESSIONS]
)
def test_slurm_still_says_the_same(name: str) -> None:
    played, recorded = sessions.play(name, skips_delays=True, patience=600), sessions.read(name)
    lines = [sorted(sessions.normalise(each.transcript).split("$")) for each in (played, recorded)]
    ranks = re.compile(r"(rank \d of \d on \w+ ?)+")
    assert [ranks.sub("ranks ", line) for line in lines[0]] == [ranks.sub("ranks ", line) for line in lines[1]]
    last = [{event.job: event.state for event in each.events} for each in (played, recorded)]
    assert last[0] == last[1]
    assert played.files == recorded.files, "the scripts have changed: gpuguide sbatch record --out"


@needs_slurm
@pytest.mark.apart
def test_nothing_of_a_slurm_stays(tmp_path: Path) -> None:
    with LocalSlurm(tmp_path / "state", nodes=2) as slurm:
        assert slurm.run("sinfo", "--noheader", "--format=%D %T").split() == ["2", "idle"]
        assert slurm.run("hostname").strip() == "login"
        pids = [daemon.pid for daemon in slurm._daemons.values()]
    for pid in pids:
        assert not Path(f"/proc/{pid}").exists()


@needs_slurm
def test_a_slurm_that_cannot_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(GpuguideError, match="0 nodes"):
        LocalSlurm(tmp_path / "state", nodes=0)
    (tmp_path / "file").touch()
    with pytest.raises(GpuguideError, match=re.escape(str(tmp_path))):
        LocalSlurm(tmp_path)


def test_without_slurm_the_packages_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("gpuguide.clusters.local_slurm._find", lambda program: None)
    assert "slurmctld" in str(find_obstacle())
    with pytest.raises(GpuguideError, match="slurmctld"):
        LocalSlurm(tmp_path / "state")
