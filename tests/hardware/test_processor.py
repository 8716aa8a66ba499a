from __future__ import annotations

import os
import platform
from pathlib import Path

import pytest

from gpuguide.hardware import processor

INTEL = """\
processor\t: 0
vendor_id\t: GenuineIntel
cpu family\t: 6
model\t\t: 143
model name\t: {name}
flags\t\t: fpu vme

processor\t: 1
model name\t: another
"""
GRACE = """\
processor\t: 0
BogoMIPS\t: 2000.00
Features\t: fp asimd sve
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x0
CPU part\t: 0xd4f
CPU revision\t: 0
"""


def machine(root: Path, cpuinfo: str | None = None, **files: str) -> Path:
    """Write the files that a Linux machine would show, and return their root."""
    named = {"proc/cpuinfo": cpuinfo} if cpuinfo is not None else {}
    for name, text in {**named, **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize(
    ("cpuinfo", "name"),
    [
        (INTEL.format(name="Intel(R) Xeon(R) Platinum 8480C"), "Intel(R) Xeon(R) Platinum 8480C"),
        (INTEL.format(name="Intel(R) Xeon(R) Processor"), "Intel(R) Xeon(R) Processor (family 6, model 143)"),
        (INTEL.format(name="Common KVM processor"), "Common KVM processor (family 6, model 143)"),
        (INTEL.format(name="unknown"), "Intel processor (family 6, model 143)"),
        (INTEL.format(name=""), "Intel processor (family 6, model 143)"),
        ("vendor_id : AuthenticAMD\ncpu family : 26\nmodel : 2\n", "AMD processor (family 26, model 2)"),
        ("vendor_id : Novel\ncpu family : 1\n", "Novel processor (family 1)"),
        (GRACE, "Arm Neoverse V2 (implementer 0x41, part 0xd4f)"),
        (GRACE.replace("0xd4f", "0xfff"), "Arm processor (implementer 0x41, part 0xfff)"),
        (GRACE.replace("0x41", "0x99"), "Arm-compatible processor (implementer 0x99, part 0xd4f)"),
        ("processor : 0\ncpu : POWER9, altivec supported\n", "POWER9, altivec supported"),
        ("processor : 0\n", "Unknown processor"),
    ],
    ids=[
        "model", "generation hidden", "no vendor in the name", "unknown", "empty", "no name", "vendor only", "Grace",
        "another core", "another maker", "POWER", "nothing",
    ],
)  # fmt: skip
def test_the_model_as_far_as_the_machine_tells(tmp_path: Path, cpuinfo: str, name: str) -> None:
    assert processor.processor_name(machine(tmp_path, cpuinfo)) == name


@pytest.mark.parametrize(
    ("said", "machine_type", "name"), [("arm", "arm64", "arm"), ("", "arm64", "arm64"), ("", "", "unknown processor")]
)
def test_without_a_cpuinfo_python_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, machine_type: str, name: str
) -> None:
    """As on macOS and Windows."""
    monkeypatch.setattr(platform, "processor", lambda: said)
    monkeypatch.setattr(platform, "machine", lambda: machine_type)
    assert processor.processor_name(tmp_path) == name


@pytest.mark.parametrize(
    ("files", "available"),
    [
        ({}, 16),
        ({"proc/self/cgroup": "0::/\n"}, 16),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, 16),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "400000 100000\n"}, 4),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/cpu.max": "150000 100000\n"}, 1.5),
        (
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/b/cpu.max": "800000 100000\n",
                "sys/fs/cgroup/a/cpu.max": "200000 100000\n",
            },
            2,
        ),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "9900000 100000\n"}, 16),
        (
            {
                "proc/self/cgroup": "5:cpu,cpuacct:/docker/f00\n2:memory:/docker/f00\n",
                "sys/fs/cgroup/cpu,cpuacct/docker/f00/cpu.cfs_quota_us": "300000\n",
                "sys/fs/cgroup/cpu,cpuacct/docker/f00/cpu.cfs_period_us": "100000\n",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            },
            3,
        ),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "strange"}, 16),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "1 0"}, 16),
    ],
    ids=[
        "no groups",
        "no limit",
        "max",
        "4",
        "1.5",
        "outer",
        "more than there are",
        "version 1",
        "strange",
        "no period",
    ],
)
def test_the_cores_that_the_process_may_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], available: float
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(16)), raising=False)
    found = processor.cores_available(machine(tmp_path, **files))
    assert found == available
    assert isinstance(found, float) == (available != int(available))


def test_without_affinity_all_cores_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 10)
    assert processor.cores_available(tmp_path) == 10


def test_this_machine_has_both() -> None:
    assert processor.processor_name()
    assert 0 < processor.cores_available() <= (os.cpu_count() or 1)
