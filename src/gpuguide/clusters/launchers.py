"""Which process am I? What srun, torchrun and mpirun put into the environment of the processes that they start.

Sources: PyTorch, "torchrun (Elastic Launch)", environment variables; Slurm, "srun", output environment variables; Open
MPI, "Environment variables set for MPI applications".
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from gpuguide.clusters.hostlist import expand
from gpuguide.errors import GpuguideError

__all__ = ["LAUNCHERS", "Process", "Rendezvous", "find_process", "find_rendezvous"]

FIRST_PORT, PORTS = 20000, 10000
"""Below the range from which Linux takes the ports of outgoing connections (32768 to 60999), and above the system's"""
PORT_IN_SHELL = f"$(({FIRST_PORT} + SLURM_JOB_ID % {PORTS}))"
"""The same port in a job script"""


@dataclass(frozen=True)
class Variables:
    """The names under which a launcher says which process this is."""

    rank: str
    local_rank: str
    world_size: str


LAUNCHERS = {
    "torchrun": Variables("RANK", "LOCAL_RANK", "WORLD_SIZE"),
    "mpirun": Variables("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE"),
    "srun": Variables("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS"),
}
"""The innermost first: torchrun and mpirun may themselves have been started by srun, whose variables stay visible"""


@dataclass(frozen=True)
class Process:
    """One process of a job."""

    launcher: str
    rank: int
    """Among all processes: 0 to ``world_size`` - 1"""
    local_rank: int
    """Among the processes of its node: the index of its GPU, if it sees all GPUs of the node"""
    world_size: int


def find_process(environment: Mapping[str, str] = os.environ) -> Process:
    """Return which process of a job this is; alone, without a launcher, rank 0 of 1.

    Raises
    ------
    GpuguideError
        If a launcher's variables are there in part, or are no numbers.
    """
    for launcher, names in LAUNCHERS.items():
        if names.rank in environment:
            values = [_read_number(environment, name, launcher) for name in vars(names).values()]
            return Process(launcher, *values)
    return Process("none", 0, 0, 1)


def _read_number(environment: Mapping[str, str], name: str, launcher: str) -> int:
    value = environment.get(name)
    if value is None or not value.isdecimal():
        found = "is not set" if value is None else f"is {value!r}"
        raise GpuguideError(f"{launcher} seems to have started this process, but {name} {found}; it must be a number.")
    return int(value)


@dataclass(frozen=True)
class Rendezvous:
    """Where all nodes of a job meet."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def find_rendezvous(environment: Mapping[str, str] = os.environ) -> Rendezvous:
    """Return the first host of a Slurm job, and a port that follows from the job's number.

    Raises
    ------
    GpuguideError
        Outside a job of Slurm.
    """
    missing = [name for name in ("SLURM_JOB_ID", "SLURM_JOB_NODELIST") if name not in environment]
    if missing:
        raise GpuguideError(f"{' and '.join(missing)} not set: this is no job of Slurm. Start one with sbatch.")
    job = _read_number(environment, "SLURM_JOB_ID", "Slurm")
    return Rendezvous(expand(environment["SLURM_JOB_NODELIST"])[0], FIRST_PORT + job % PORTS)
