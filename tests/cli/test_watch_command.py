"""``gpuguide watch`` in a terminal and out of one, with a made-up driver."""

from __future__ import annotations

import io
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fake_nvml import FakeNvml
from rich.console import Console

from gpuguide.cli import live
from gpuguide.hardware import monitor
from gpuguide.hardware.trace import Row, Trace

Run = Callable[..., tuple[int, str, str]]
TESTS = Path(__file__).parent.parent


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Callable[..., FakeNvml]:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def install(*arguments: object, **named: object) -> FakeNvml:
        made = FakeNvml(*arguments, **named)  # type: ignore[arg-type]
        monkeypatch.setitem(sys.modules, "pynvml", made)
        return made

    return install


# --- out of a terminal -----------------------------------------------------------------------------------


def test_every_reading_is_a_line_and_the_totals_follow(nvml: Callable[..., FakeNvml], gpuguide: Run) -> None:
    driver = nvml(2)
    status, out, err = gpuguide("watch", "--interval", "0.02", "--seconds", "0.04")
    assert status == 0
    lines = out.splitlines()
    assert [re.sub(r"^\d\d:\d\d:\d\d  ", "", line).split("  ")[0] for line in lines] == ["GPU 0", "GPU 1"] * 3
    assert all(
        "GPU utilisation 100%" in line and "temperature 4" in line and "clock limits: SW Power Cap" in line
        for line in lines
    )
    assert "\x1b" not in out
    assert "GPU 0, NVIDIA Made-up 0: 3 readings" in err
    assert "energy:" in err
    assert driver.open == 0


def test_one_gpu_is_chosen_and_its_readings_are_kept(
    nvml: Callable[..., FakeNvml], gpuguide: Run, tmp_path: Path
) -> None:
    nvml(3)
    file = tmp_path / "trace.csv"
    status, out, _ = gpuguide("watch", "--device", "2", "--seconds", "0", "--out", file)
    assert (status, len(out.splitlines())) == (0, 1)
    assert Trace.load(file)["temperature"].tolist() == [47]


def test_every_reading_is_in_the_file_when_the_next_one_is_made(
    nvml: Callable[..., FakeNvml], gpuguide: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What kills the program, or the machine, takes no reading with it; and no more are held than a screen shows."""
    nvml()
    file, on_disk, held = tmp_path / "trace.csv", [], []
    monkeypatch.setattr(live, "KEPT", 2)
    sample = monitor.Sampler.sample

    def counted(sampler: monitor.Sampler) -> None:
        on_disk.append(len(Trace.load(file).rows) if file.exists() else 0)
        held.append(len(sampler.trace.rows))
        sample(sampler)

    monkeypatch.setattr(monitor.Sampler, "sample", counted)
    status, _, err = gpuguide("watch", "--interval", "0.02", "--seconds", "0.1", "--out", file)
    assert status == 0
    assert on_disk == [0, 1, 2, 3, 4, 5]
    assert held == [0, 1, 2, 2, 2, 2]
    assert "GPU 0, NVIDIA Made-up 0: 6 readings" in err
    whole = Trace.load(file)
    assert len(whole.rows) == 6
    assert whole.totals().columns["power"].most == 106.0 - 100.0


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["--device", "7"], 1, "There is no GPU number 7: there are 2, from 0 to 1."),
        (["--device", "GPU-ffff"], 2, "There is no GPU named 'GPU-ffff'."),
        (["--out", "trace.txt"], 1, "kept as .json or .csv"),
        (["--out", "trace.json"], 1, "Readings are written as they come, which 'trace.json' cannot take: name a .csv."),
        (["--out", "missing/trace.csv", "--device", "0"], 1, "Cannot write the trace missing/trace.csv: No such file"),
        (["--out", "trace.csv"], 1, "--out keeps one GPU, and 2 would be watched. Choose one with --device."),
        (["--interval", "0"], 2, "0.02"),
    ],
)
def test_what_cannot_be_watched_is_said_in_one_sentence(
    nvml: Callable[..., FakeNvml], gpuguide: Run, words: list[str], status: int, message: str
) -> None:
    nvml(2)
    found, out, err = gpuguide("watch", "--seconds", "0", *words)
    assert (found, out) == (status, "")
    assert message in err


def test_without_a_driver(nvml: Callable[..., FakeNvml], gpuguide: Run) -> None:
    nvml(refused={"nvmlInit"})
    status, out, err = gpuguide("watch")
    assert (status, out) == (1, "")
    assert err.startswith("gpuguide: There is no NVIDIA driver to ask")


def test_ctrl_c_ends_it_well(nvml: Callable[..., FakeNvml], gpuguide: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = nvml()

    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(live.time, "sleep", interrupted)
    status, out, err = gpuguide("watch")
    assert (status, len(out.splitlines())) == (0, 1)
    assert "1 readings" in err
    assert driver.open == 0


# --- in a terminal ---------------------------------------------------------------------------------------


def screen(width: int = 100, height: int = 50) -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=width, height=height, color_system="truecolor")


def shown(console: Console, traces: list[Trace]) -> list[str]:
    with console.capture() as captured:
        console.print(live.view(traces, console))
    return re.sub(r"\x1b\[[0-9;]*m", "", captured.get()).splitlines()


def watched(count: int, readings: int = 3) -> list[Trace]:
    with monitor.samplers(interval=1) as found:
        for sampler in found:
            for _ in range(readings):
                sampler.sample()
    return [sampler.trace for sampler in found][:count]


@pytest.mark.parametrize("width", [24, 40, 63, 64, 100, 200])
def test_no_line_is_wider_than_the_terminal(nvml: Callable[..., FakeNvml], width: int) -> None:
    nvml(1)
    lines = shown(screen(width), watched(1, 300))
    assert max(map(len, lines)) <= width
    assert lines[0].startswith("GPU 0")
    assert any("█" in line for line in lines) == (width >= live.NARROW)
    assert any("1.98 GHz" in line for line in lines)


def test_a_panel_shows_bounds_limits_and_what_is_missing(nvml: Callable[..., FakeNvml]) -> None:
    nvml(1, refused={"nvmlDeviceGetFieldValues"})
    lines = shown(screen(), watched(1))
    assert "SM activity" in lines[3]
    assert "20%" in lines[3]
    assert "memory used" in lines[7]
    assert "1 GiB of 80 GiB" in lines[7]
    assert any("45 °C of 89 °C" in line for line in lines)
    assert "clock limits: SW Power Cap" in lines
    assert "not given by this GPU: power now, memory temperature" in lines


def test_many_gpus_are_a_table_where_panels_would_not_fit(nvml: Callable[..., FakeNvml]) -> None:
    nvml(8)
    traces = watched(8)
    assert len(shown(screen(height=30), traces)) == 9
    assert len(shown(screen(height=200), traces)) > 9 * 8


def test_history_goes_from_nothing_to_what_bounds_it() -> None:
    trace = Trace("a GPU", 0, 1.0, "", {"power": "W", "temperature": "°C"}, board={"power_limit": 800.0})
    for watts in (0.0, 100.0, 400.0, float("nan"), 800.0, 900.0):
        trace.rows.append(Row(0.0, 0.0, {"power": watts, "temperature": watts}))
    assert live.history(trace, "power", 20) == " ▁▄ ██"
    assert live.history(trace, "temperature", 20) == " ▁▄ ██"
    assert live.history(trace, "power", 2) == "██"


def test_ticks_keep_to_the_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(live.time, "sleep", slept.append)
    assert list(live.ticks(0.5, 1.0)) == [0, 1, 2]
    assert len(slept) == 2
    assert slept[0] <= 0.5
    assert slept[1] <= 1.0
    assert list(live.ticks(1.0, 0.0)) == [0]


@pytest.fixture
def ctrl_c_ends_children() -> Iterator[None]:
    """Start processes that Ctrl-C ends, though whoever runs the tests in the background may ignore it for them."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="there are no pseudo-terminals here")
@pytest.mark.usefixtures("ctrl_c_ends_children")
@pytest.mark.parametrize("colour", [True, False])
def test_in_a_real_terminal_it_renews_itself_and_ends_with_ctrl_c(tmp_path: Path, colour: bool) -> None:
    (tmp_path / "pynvml.py").write_text("from fake_nvml import _nvml\nimport sys\nsys.modules['pynvml'] = _nvml\n")
    ours, theirs = os.openpty()
    variables = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "CUDA_VISIBLE_DEVICES")}
    path = os.pathsep.join([str(tmp_path), str(TESTS), str(TESTS.parent / "src")])
    variables |= {"PYTHONPATH": path, "TERM": "xterm-256color", "COLUMNS": "90", "LINES": "40", "PYTHONUTF8": "1"}
    if not colour:
        variables["NO_COLOR"] = "1"
    command = [sys.executable, "-m", "gpuguide", "watch", "--interval", "0.05"]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=subprocess.PIPE, env=variables)
    os.close(theirs)
    seen = b""
    deadline = time.monotonic() + 60
    while seen.count(b"GPU 0") < 3 and time.monotonic() < deadline:
        if select.select([ours], [], [], 1)[0]:
            seen += os.read(ours, 65536)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=600)
    os.close(ours)
    assert process.returncode == 0
    assert "readings in" in err.decode()
    assert "Traceback" not in err.decode()
    text = seen.decode()
    assert text.count("NVIDIA Made-up 0") >= 3
    assert "\x1b[1A" in text  # the cursor goes up to write over what stood there
    coloured = re.search(r"\x1b\[[0-9;]*3[0-7]m", text)
    assert bool(coloured) is colour
