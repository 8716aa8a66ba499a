"""A batch script that starts one training program on every GPU of several nodes, and starts it again until it is done.

Sources: Slurm, "sbatch" and "srun"; PyTorch, "torchrun (Elastic Launch)".
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from datetime import timedelta
from string import Template

from gpuguide.clusters.launchers import PORT_IN_SHELL
from gpuguide.errors import GpuguideError

__all__ = ["Job", "write"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")

_SCRIPT = Template("""\
#!/bin/bash
#SBATCH --job-name=$name$partition
#SBATCH --nodes=$nodes --ntasks-per-node=1
#SBATCH --gpus-per-node=$gpus_per_node --cpus-per-task=$cpus
#SBATCH --time=$time --signal=B:USR1@$lead
#SBATCH --requeue --open-mode=append --output=%x-%j.log

export SRUN_CPUS_PER_TASK=$$SLURM_CPUS_PER_TASK
export STOP_FILE=$$PWD/stop-$$SLURM_JOB_ID
rm -f "$$STOP_FILE"
trap 'touch "$$STOP_FILE"; wait $$! || exit $$?; scontrol requeue "$$SLURM_JOB_ID"' USR1

head=$$(scontrol show hostnames "$$SLURM_JOB_NODELIST" | head -n 1)
port=$port
srun --kill-on-bad-exit=1 torchrun \\
  --nnodes="$$SLURM_JOB_NUM_NODES" --nproc-per-node=$gpus_per_node \\
  --rdzv-backend=c10d --rdzv-endpoint="$$head:$$port" --rdzv-id="$$SLURM_JOB_ID" \\
  $command &
wait $$!
""")


@dataclass(frozen=True)
class Job:
    """What a training job asks of a cluster."""

    command: str
    """The program and its arguments, without the launcher: ``train.py --config base.toml``"""
    nodes: int = 2
    gpus_per_node: int = 8
    cpus_per_gpu: int = 12
    """Cores for one GPU's process and the workers of its data loader"""
    limit: timedelta = timedelta(hours=24)
    """Time limit, after which Slurm ends the job"""
    lead: timedelta = timedelta(minutes=5)
    """Time before the limit at which the program is asked to save its state and end"""
    name: str = "train"
    partition: str | None = None

    def __post_init__(self) -> None:
        for field in ("nodes", "gpus_per_node", "cpus_per_gpu"):
            if getattr(self, field) < 1:
                raise GpuguideError(f"{field} is {getattr(self, field)}; a job needs at least 1.")
        if not timedelta(0) < self.lead < self.limit:
            raise GpuguideError(
                f"The signal comes {self.lead} before the end, and the job may take {self.limit}: the lead must be "
                f"positive and shorter than the time limit."
            )
        for field in ("name", "partition"):
            value = getattr(self, field)
            if value is not None and not _NAME.fullmatch(value):
                raise GpuguideError(f"{value!r} is no {field}: use letters, digits, dots, hyphens and underscores.")
        if not shlex.split(self.command):
            raise GpuguideError("There is no command: name the training program, such as 'train.py'.")

    @property
    def gpus(self) -> int:
        """GPUs, and with torchrun processes, of all nodes."""
        return self.nodes * self.gpus_per_node


def write(job: Job) -> str:
    """Return the batch script of a job.

    Slurm starts one task per node, torchrun, which starts one process per GPU. ``lead`` before the time limit, the
    batch shell creates ``STOP_FILE``, which the program looks for: it saves its state and ends. If it ends without an
    error, the job is queued again, even if the program was just done: started again, it must then end at once. A
    program that fails, at any time, ends the job as failed. ``SIGUSR1`` sent to the processes themselves would end
    torchrun, which by default does not handle it.
    """
    return _SCRIPT.substitute(
        name=job.name,
        partition=f" --partition={job.partition}" if job.partition else "",
        nodes=job.nodes,
        gpus_per_node=job.gpus_per_node,
        cpus=job.gpus_per_node * job.cpus_per_gpu,
        time=_describe_limit(job.limit),
        lead=round(job.lead.total_seconds()),
        port=PORT_IN_SHELL,
        command=job.command,
    )


def _describe_limit(limit: timedelta) -> str:
    """Return a time limit as Slurm writes it, in whole seconds: ``days-hours:minutes:seconds``."""
    hours, seconds = divmod(limit.seconds, 3600)
    minutes, seconds = divmod(seconds, 60)
    clock = f"{hours:02}:{minutes:02}:{seconds:02}"
    return f"{limit.days}-{clock}" if limit.days else clock
