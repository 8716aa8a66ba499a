"""Batch scripts that the library writes."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuguide.clusters.checking import check
from gpuguide.clusters.launchers import find_rendezvous
from gpuguide.clusters.script import Job, write
from gpuguide.errors import GpuguideError

jobs = st.builds(
    Job,
    st.sampled_from(["train.py", "train.py --config 'a b.toml'", "-m package.train"]),
    nodes=st.integers(1, 600),
    gpus_per_node=st.integers(1, 16),
    cpus_per_gpu=st.integers(1, 32),
    limit=st.timedeltas(timedelta(minutes=10), timedelta(days=30)),
    lead=st.timedeltas(timedelta(seconds=1), timedelta(minutes=9)),
    name=st.sampled_from(["train", "gpt-2_small.v1"]),
    partition=st.none() | st.just("gpu"),
)


@given(jobs)
def test_the_checker_finds_no_fault(job: Job) -> None:
    assert check(write(job)) == []


@given(jobs)
def test_it_asks_for_what_the_job_needs(job: Job) -> None:
    script = write(job)
    options = dict(word.partition("=")[::2] for line in script.splitlines() for word in line.split() if "=" in word)
    assert int(options["--nodes"]) * int(options["--gpus-per-node"]) == job.gpus
    assert int(options["--cpus-per-task"]) == job.gpus_per_node * job.cpus_per_gpu
    assert options["--nproc-per-node"] == options["--gpus-per-node"]
    assert options["--ntasks-per-node"] == "1"
    assert job.command in script


@pytest.mark.parametrize(
    ("limit", "written"),
    [
        (timedelta(minutes=10), "00:10:00"),
        (timedelta(hours=24), "1-00:00:00"),
        (timedelta(days=6, hours=23, minutes=59, seconds=58), "6-23:59:58"),
    ],
)
def test_a_limit_is_written_as_slurm_has_it(limit: timedelta, written: str) -> None:
    assert f"--time={written} " in write(Job("train.py", limit=limit))


def test_the_port_is_the_one_that_processes_find() -> None:
    line = next(line for line in write(Job("train.py")).splitlines() if line.startswith("port="))
    shell = subprocess.run(
        ["bash", "-c", f"SLURM_JOB_ID=123456; {line}; echo $port"], capture_output=True, text=True, check=True
    )
    job = {"SLURM_JOB_ID": "123456", "SLURM_JOB_NODELIST": "n1"}
    assert int(shell.stdout) == find_rendezvous(job).port


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"nodes": 0}, "nodes"),
        ({"gpus_per_node": -1}, "gpus_per_node"),
        ({"cpus_per_gpu": 0}, "cpus_per_gpu"),
        ({"lead": timedelta(hours=25)}, "1 day, 1:00:00"),
        ({"lead": timedelta(0)}, "0:00:00"),
        ({"name": "my job"}, "my job"),
        ({"partition": "a;b"}, "a;b"),
        ({"command": " "}, "command"),
    ],
)
def test_what_slurm_would_refuse_is_named(wrong: dict[str, object], named: str) -> None:
    with pytest.raises(GpuguideError, match=named):
        Job(**{"command": "train.py", **wrong})  # type: ignore[arg-type]


@pytest.mark.parametrize("job", [Job("train.py"), Job("-m p.train --x 1", nodes=1, gpus_per_node=1, partition="gpu")])
def test_a_shell_can_read_it(job: Job) -> None:
    subprocess.run(["bash", "-n"], input=write(job), text=True, check=True)


@pytest.mark.parametrize("signals", [1, 2])
@pytest.mark.parametrize(("status", "requeued"), [(0, True), (7, False)])
def test_a_job_is_queued_again_only_if_it_has_saved(tmp_path: Path, status: int, requeued: bool, signals: int) -> None:
    commands = {
        "srun": f'touch started; until [ -e "$STOP_FILE" ]; do sleep 0.05; done; sleep 1; exit {status}',
        "scontrol": 'echo "$@" >> scontrol.log',
    }
    for name, body in commands.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n1", "SLURM_JOB_NUM_NODES": "1", "SLURM_CPUS_PER_TASK": "1"}
    environment = os.environ | job | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    shell = subprocess.Popen(["bash", "-c", write(Job("train.py"))], cwd=tmp_path, env=environment)
    wait_for_file(tmp_path / "started")
    for _ in range(signals):
        shell.send_signal(signal.SIGUSR1)
        wait_for_file(tmp_path / "stop-7")
    ended = shell.wait(timeout=30)
    assert ("requeue 7" in (tmp_path / "scontrol.log").read_text()) == requeued
    assert requeued or ended == status


def test_a_job_whose_program_fails_fails(tmp_path: Path) -> None:
    for name, body in {"srun": "exit 7", "scontrol": "echo n1"}.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n1", "SLURM_JOB_NUM_NODES": "1", "SLURM_CPUS_PER_TASK": "1"}
    environment = os.environ | job | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    assert subprocess.run(["bash", "-c", write(Job("train.py"))], cwd=tmp_path, env=environment).returncode == 7


def wait_for_file(file: Path) -> None:
    end = time.monotonic() + 30
    while not file.exists():
        assert time.monotonic() < end, f"no {file.name}"
        time.sleep(0.02)
