"""The circumstances of a run: machine, driver, versions, commit and command, without any name of a user or a host."""

from __future__ import annotations

import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import asdict
from datetime import UTC, datetime

import gpuguide
from gpuguide.hardware.device import Device
from gpuguide.hardware.monitor import DriverState, read_driver
from gpuguide.hardware.processor import cores_available, processor_name
from gpuguide.measure import digest, libraries
from gpuguide.measure.records import Readings, Run

SEED = 0


def environment(device: Device, commit: str | None, called: Iterable[str] = ()) -> Run:
    """Describe this moment and machine, with the versions of what is ``called``. It names no user, host or path."""
    import torch

    state = device_state(device)
    now = moment()
    return Run(
        device_name=device.name,
        driver=state.driver,
        cuda=torch.version.cuda if device.backend == "cuda" else None,
        python=platform.python_version(),
        versions={"gpuguide": gpuguide.__version__, **library_versions(device, called)},
        host_cpu=processor_name(),
        host_cores=os.cpu_count() or 1,
        host_cores_available=cores_available(),
        before=readings(state),
        after=readings(state),
        started_at=now,
        finished_at=now,
        elapsed=0.0,
        commit=commit or commit_of_checkout(),
        seed=SEED,
        command=command_line(),
        simulated=device.backend == "fake",
    )


def device_state(device: Device) -> DriverState:
    """Return the driver's readings of a CUDA device; nothing for others."""
    if device.backend != "cuda":
        return DriverState()
    import torch

    return read_driver(str(torch.cuda.get_device_properties(device.torch_device).uuid))


def readings(state: DriverState) -> Readings:
    """Keep of a driver's state what a record holds."""
    fields = asdict(state)
    return Readings(**{name: fields[name] for name in Readings.__dataclass_fields__})


def library_versions(device: Device, called: Iterable[str] = ()) -> dict[str, str]:
    """Return the versions of the libraries that take part in measuring a device, as far as they are here."""
    of_cuda = libraries.OF_CUDA if device.backend == "cuda" else ()
    return libraries.versions((*libraries.CALLED_BY_ALL, *of_cuda, *called))


def commit_of_checkout() -> str | None:
    """Return the commit of the checkout that gpuguide runs from, marked if code differs; ``None`` elsewhere."""

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", *arguments], cwd=digest.PACKAGE_FOLDER, capture_output=True, text=True, timeout=10
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    head = git("rev-parse", "HEAD")
    if not head or not git("ls-files", "--", "measure/runner"):  # a project that has gpuguide in its environment
        return None
    return f"{head}-modified" if git("status", "--porcelain", "--", ".", ":!records") else head


def command_line() -> str:
    """Return the command that runs now, without the folders that it names."""
    words = ["gpuguide"]
    hide = False
    for word in sys.argv[1:]:
        is_path = hide or "/" in word or "\\" in word  # a notebook's kernel is started with one, too
        words.append("--out=DIR" if word.startswith("--out=") else "DIR" if is_path else word)
        hide = word == "--out"
    return shlex.join(words)


def mask_paths(text: str) -> str:
    """Return ``text`` with absolute paths, which may name a user, written as ``PATH``."""
    return re.sub(r"(?<![\w.~])(/|[A-Za-z]:\\)[^\s'\"]+", "PATH", text)


def moment() -> str:
    """Return the time now as records write it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")
