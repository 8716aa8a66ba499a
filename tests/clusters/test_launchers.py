"""Which process of a job one is, by what launchers say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gpuguide.clusters.launchers import LAUNCHERS, Process, find_process, find_rendezvous
from gpuguide.errors import GpuguideError

SRUN = {"SLURM_PROCID": "1", "SLURM_LOCALID": "0", "SLURM_NTASKS": "2"}
TORCHRUN = {"RANK": "11", "LOCAL_RANK": "3", "WORLD_SIZE": "16"}
MPIRUN = {"OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_SIZE": "8"}


def test_alone_it_is_the_only_process() -> None:
    assert find_process({}) == Process("none", 0, 0, 1)


@pytest.mark.parametrize(
    ("variables", "wanted"),
    [
        (SRUN, Process("srun", 1, 0, 2)),
        (TORCHRUN, Process("torchrun", 11, 3, 16)),
        (MPIRUN, Process("mpirun", 5, 1, 8)),
        (SRUN | TORCHRUN, Process("torchrun", 11, 3, 16)),
        (SRUN | MPIRUN, Process("mpirun", 5, 1, 8)),
    ],
)
def test_the_innermost_launcher_counts(variables: dict[str, str], wanted: Process) -> None:
    assert find_process(variables) == wanted


@pytest.mark.parametrize("value", [None, "", "one", "-1", "1.0"])
def test_half_an_environment_names_the_variable(value: str | None) -> None:
    broken = {name: text for name, text in (TORCHRUN | {"WORLD_SIZE": value}).items() if text is not None}
    with pytest.raises(GpuguideError, match="WORLD_SIZE"):
        find_process(broken)


def test_torchrun_says_what_is_read(tmp_path: Path) -> None:
    code = (
        "import pathlib; from gpuguide.clusters.launchers import find_process as f; p = f();"
        "pathlib.Path(str(p.rank)).write_text(f'{p.launcher} {p.local_rank} {p.world_size}')"
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--no-python"]
    subprocess.run([*command, sys.executable, "-c", code], cwd=tmp_path, capture_output=True, check=True)
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {"0": "torchrun 0 2", "1": "torchrun 1 2"}


def test_all_meet_at_the_first_host_and_at_a_port_of_the_job() -> None:
    job = {"SLURM_JOB_ID": "4711", "SLURM_JOB_NODELIST": "gpu[07-09]"}
    assert str(find_rendezvous(job)) == "gpu07:24711"
    assert find_rendezvous(job | {"SLURM_JOB_ID": "4712"}).port != find_rendezvous(job).port
    ports = {find_rendezvous(job | {"SLURM_JOB_ID": str(number)}).port for number in (1, 9999, 10000, 123_456_789)}
    assert all(1024 < port < 32768 for port in ports)


def test_outside_a_job_there_is_no_rendezvous() -> None:
    with pytest.raises(GpuguideError, match="SLURM_JOB_ID"):
        find_rendezvous({"SLURM_JOB_NODELIST": "n1"})


def test_the_names_are_all_different() -> None:
    names = [name for of in LAUNCHERS.values() for name in vars(of).values()]
    assert len(set(names)) == len(names)
