"""The host's processor: its model, and the cores that a process may use, as far as the machine tells."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/")
VENDORS = {"GenuineIntel": "Intel", "AuthenticAMD": "AMD", "HygonGenuine": "Hygon"}
"""Names that processors give their vendor"""
IMPLEMENTERS = {0x41: "Arm", 0x46: "Fujitsu", 0x48: "HiSilicon", 0x4E: "NVIDIA", 0x51: "Qualcomm", 0x61: "Apple"}
ARM_CORES = {
    0xD0C: "Neoverse N1",
    0xD40: "Neoverse V1",
    0xD49: "Neoverse N2",
    0xD4F: "Neoverse V2",
    0xD84: "Neoverse V3",
}
"""Cores of Arm's own design in servers; NVIDIA Grace has Neoverse V2. Source: Arm, the cores' reference manuals"""


def processor_name(root: Path = ROOT) -> str:
    """Return the model of the processor.

    A virtual machine often hides it and says ``Intel(R) Xeon(R) Processor`` or nothing at all. Then the family and the
    model number are added, by which one can look up the generation.

    Parameters
    ----------
    root : Path
        The folder in which ``proc/cpuinfo`` lies.
    """
    said = cpuinfo(root)
    name = next((said[field] for field in ("model name", "cpu", "Model", "Hardware") if said.get(field)), "")
    if any(letter.isdigit() for letter in name) or not said:
        return name or platform.processor() or platform.machine() or "unknown processor"
    numbers = ", ".join(f"{word} {said[field]}" for word, field in NUMBERS if said.get(field))
    name = name if name and name.lower() != "unknown" else vendor(said)
    return f"{name} ({numbers})" if numbers else name


NUMBERS = (("family", "cpu family"), ("model", "model"), ("implementer", "CPU implementer"), ("part", "CPU part"))


def vendor(said: dict[str, str]) -> str:
    """Return who made a processor that does not tell its model; of Arm's cores, which one it is."""
    if "CPU implementer" in said:
        implementer, part = (int(said.get(field) or "0", 0) for field in ("CPU implementer", "CPU part"))
        known = ARM_CORES.get(part) if implementer == 0x41 else None
        return f"{IMPLEMENTERS.get(implementer, 'Arm-compatible')} {known or 'processor'}"
    named = said.get("vendor_id", "")
    return f"{VENDORS.get(named, named) or 'Unknown'} processor"


def cpuinfo(root: Path = ROOT) -> dict[str, str]:
    """Return what ``/proc/cpuinfo`` says of the first core; nothing where there is no such file."""
    try:
        text = (root / "proc" / "cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    pairs = (line.partition(":") for line in text.splitlines())
    found: dict[str, str] = {}
    for field, colon, value in pairs:
        if colon:
            found.setdefault(field.strip(), value.strip())
    return found


def cores_available(root: Path = ROOT) -> float:
    """Return how many cores this process may use: those it may run on, or fewer by the quota of its control group.

    A quota may be a fraction, such as 1.5 cores.
    """
    try:
        allowed = len(os.sched_getaffinity(0))
    except (AttributeError, OSError):  # neither on macOS nor on Windows
        allowed = os.cpu_count() or 1
    quotas = list(cpu_quotas(root))
    least = min([allowed, *quotas])
    return int(least) if least == int(least) else least


def cpu_quotas(root: Path = ROOT) -> Iterator[float]:
    """Yield the cores that each control group around this process grants, of both versions of control groups.

    Source: Linux, ``Documentation/admin-guide/cgroup-v2.rst`` and ``Documentation/scheduler/sched-bwc.rst``.
    """
    try:
        lines = (root / "proc" / "self" / "cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, group = line.split(":", 2)
        for folder in groups_around(root / "sys/fs/cgroup", controllers, group):
            try:
                if controllers:
                    quota, period = ((folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
                else:
                    quota, period = (folder / "cpu.max").read_text().split()
                granted = float(quota) / float(period)
            except (OSError, ValueError, ZeroDivisionError):  # no limit: no file, or the word "max"
                continue
            if granted > 0:
                yield granted


def groups_around(mounted: Path, controllers: str, group: str) -> Iterator[Path]:
    """Yield the folders of a control group and of all that hold it, if it limits processors."""
    if controllers and "cpu" not in controllers.split(","):
        return
    top = mounted / controllers if controllers else mounted
    inner = Path(group.lstrip("/"))
    for part in (inner, *inner.parents):
        yield top / part
