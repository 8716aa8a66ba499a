"""What tests of clusters need of the machine they run on."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from gpuguide.clusters.local_slurm import find_obstacle

needs_slurm_programs = pytest.mark.skipif(shutil.which("scontrol") is None, reason="Slurm's commands are not installed")
needs_slurm = pytest.mark.skipif(find_obstacle() is not None, reason=f"no Slurm here: {find_obstacle()}")


def run_without_cluster(folder: Path, *command: str) -> str:
    """Run one of Slurm's commands that asks no controller, and return what it prints."""
    configuration = folder / "slurm.conf"
    configuration.write_text("ClusterName=none\nSlurmctldHost=localhost\nNodeName=n1\n")
    environment = {**os.environ, "SLURM_CONF": str(configuration)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
