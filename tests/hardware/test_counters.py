from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gpuguide.errors import GpuguideError
from gpuguide.hardware import counters
from gpuguide.hardware.counters import DURATION, READ, WRITTEN

TABLE = f'''==PROF== Connected to process 4242
==PROF== Profiling "gemm": 0%....100% - 1 pass
"ID","Process ID","Kernel Name","Grid Size","{READ}","{WRITTEN}","{DURATION}"
"","","","","byte","byte","ns"
"0","4242","void gemm<float, 4>(int, int)","(1, 2, 3)","67,108,864","1,024.50","12,345"
"1","4242","softmax","(1, 1, 1)","0","4294967296","7"
'''
PROGRAM = """
import sys
arguments = sys.argv[1:]
log = arguments[arguments.index("--log-file") + 1]
open(log, "w").write({table!r})
open({seen!r}, "w").write("\\n".join(arguments))
sys.stderr.write({complaint!r})
sys.exit({status})
"""


@pytest.fixture
def profiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    """Put a profiler on the path that answers as it is told."""

    def install(table: str = TABLE, complaint: str = "", status: int = 0) -> Path:
        seen, tool = tmp_path / "seen", tmp_path / "ncu"
        text = PROGRAM.format(table=table, seen=str(seen), complaint=complaint, status=status)
        tool.write_text(f"#!{sys.executable}\n{text}")
        tool.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))
        return seen

    return install


def test_kernels_come_in_their_order_in_bytes_and_seconds() -> None:
    found = counters.parse(TABLE.splitlines(), (READ, WRITTEN, DURATION))
    assert found == [
        {READ: 2**26, WRITTEN: 1024.5, DURATION: pytest.approx(12.345e-6)},
        {READ: 0, WRITTEN: 2**32, DURATION: pytest.approx(7e-9)},
    ]


def test_units_are_read_and_unknown_ones_refused() -> None:
    other = TABLE.replace('"ns"', '"us"')
    assert counters.parse(other.splitlines(), (DURATION,))[0][DURATION] == pytest.approx(12.345e-3)
    with pytest.raises(GpuguideError, match=rf"gives {DURATION} in 'Kbyte'"):
        counters.parse(TABLE.replace('"ns"', '"Kbyte"').splitlines(), (DURATION,))
    with pytest.raises(GpuguideError, match=r"gives sm__cycles in None"):
        counters.parse(TABLE.splitlines(), ("sm__cycles",))


def test_what_the_profiler_is_asked(profiler: object) -> None:
    seen = profiler()  # type: ignore[operator]
    assert len(counters.count(["python", "program.py", "--log-file"])) == 2
    asked = seen.read_text().splitlines()
    assert asked[-3:] == ["python", "program.py", "--log-file"]
    for option, value in (
        ("--profile-from-start", "off"),
        ("--cache-control", "none"),
        ("--clock-control", "none"),
        ("--metrics", f"{READ},{WRITTEN},{DURATION}"),
    ):
        assert asked[asked.index(option) + 1] == value


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"table": "==ERROR== ERR_NVGPUCTRPERM - no permission\n", "status": 1}, "lets only administrators read"),
        ({"table": "", "complaint": "first\nit broke\n", "status": 3}, r"ended with 3 under Nsight Compute: it broke"),
        ({"table": "==PROF== No kernels were profiled\n"}, "saw no kernel between the start and the stop"),
    ],
)
def test_what_goes_wrong_is_said(profiler: object, given: dict[str, object], message: str) -> None:
    profiler(**given)  # type: ignore[operator]
    with pytest.raises(GpuguideError, match=message):
        counters.count(["python"])


def test_without_the_profiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(counters, "USUAL_PLACE", tmp_path / "ncu")
    assert counters.profiler() is None
    with pytest.raises(GpuguideError, match=r"^Nsight Compute \(ncu\) is not installed"):
        counters.count(["python"])
