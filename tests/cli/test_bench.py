from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from gpuguide.measure import records, reference_gpu, runner
from gpuguide.measure.runner import environment

OURS = reference_gpu.slug()
Run = Callable[..., tuple[int, str, str]]


def test_bench_list_names_every_benchmark_and_where_it_was_measured(gpuguide: Run, fresh: Path) -> None:
    status, out, err = gpuguide("bench", "list")
    assert (status, err) == (0, "")
    for name in ("ceilings", "copy-size", "matmul-size", "transfer-size", "timing-mistakes"):
        (row,) = re.findall(rf"^{name} .*(?:\n .*)*", out, re.MULTILINE)
        assert "?" in row
        assert OURS in row
        assert f"{OURS} (stale)" not in row


def test_bench_run_measures_stores_and_goes_on(gpuguide: Run, fake_gpu: str, overlay: Path) -> None:
    status, out, err = gpuguide("bench", "run", "ceilings", "timing-mistakes", "--commit", "c0ffee")
    assert (status, out) == (0, "")
    assert str(overlay) in err
    assert re.search(r"\[1/3, about \d+ (s|min) left\] ceilings", err)
    assert "[3/3, about 0 s left] timing-mistakes: shape=skinny" in err
    assert re.search(r"copy: [\d.]+ µs", err)
    assert "3 cases measured." in err
    assert sorted(path.name for path in (overlay / fake_gpu).iterdir()) == ["ceilings.json", "timing-mistakes.json"]
    assert records.read(overlay / fake_gpu / "ceilings.json").runs[0].commit == "c0ffee"
    status, _, err = gpuguide("bench", "run", "ceilings", "timing-mistakes")
    assert status == 0
    assert "0 cases measured; 3 were measured before (--overwrite" in err
    status, _, err = gpuguide("bench", "run", "ceilings", "--overwrite")
    assert "1 case measured." in err


def test_bench_run_says_where_records_will_name_no_commit(
    gpuguide: Run, fake_gpu: str, overlay: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "commit_of_checkout", lambda: None)
    for more, told in (([], True), (["--commit", "c0ffee", "--overwrite"], False), (["--quick"], False)):
        _, _, err = gpuguide("bench", "run", "ceilings", *more)
        assert ("--commit" in err) is told
    monkeypatch.setattr(environment, "commit_of_checkout", lambda: "c0ffee")
    assert "--commit" not in gpuguide("bench", "run", "ceilings", "--overwrite")[2]


def test_bench_run_stops_at_the_time_limit_and_says_how_to_go_on(gpuguide: Run, fake_gpu: str, overlay: Path) -> None:
    status, _, err = gpuguide("bench", "run", "ceilings", "--time-limit", "0")
    assert status == 0
    assert "0 cases measured; 1 not reached within the time limit (run again to go on)." in err
    assert not list(overlay.glob("*/*"))


def test_bench_run_stores_in_the_folder_that_is_named(
    gpuguide: Run, fake_gpu: str, overlay: Path, tmp_path: Path
) -> None:
    assert gpuguide("bench", "run", "ceilings", "--out", tmp_path / "here")[0] == 0
    assert not overlay.exists()
    record = records.read(tmp_path / "here" / fake_gpu / "ceilings.json")
    assert record.runs[0].command == "gpuguide bench run ceilings --out DIR"


def test_bench_run_quick_stores_nothing(gpuguide: Run, fake_gpu: str, overlay: Path) -> None:
    status, _, err = gpuguide("bench", "run", "copy-size", "--quick")
    assert status == 0
    assert "records go to" not in err
    assert "1 case measured." in err
    assert not overlay.exists()


def test_bench_run_without_a_place_for_records(gpuguide: Run, fake_gpu: str) -> None:
    """The tests run with GPUGUIDE_RECORDS set and empty."""
    status, out, err = gpuguide("bench", "run", "ceilings")
    assert (status, out) == (1, "")
    assert "GPUGUIDE_RECORDS is set and empty" in err
    assert "--out" in err
    assert "--quick" in err
    assert gpuguide("bench", "run", "ceilings", "--quick")[0] == 0


def test_bench_run_without_a_gpu(gpuguide: Run, overlay: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPUGUIDE_FAKE_DEVICE", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    status, out, err = gpuguide("bench", "run")
    assert (status, out) == (1, "")
    assert "sees no CUDA GPU" in err
    assert "gpuguide doctor" in err
    assert "--device cpu" in err
    assert not overlay.exists()


def test_bench_run_with_an_unknown_fake_device(gpuguide: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUGUIDE_FAKE_DEVICE", "rtx-4099")
    status, _, err = gpuguide("bench", "run", "--quick")
    assert status == 2
    assert "rtx-4090" in err


def test_a_damaged_record_in_the_way_is_named(gpuguide: Run, fake_gpu: str, overlay: Path) -> None:
    path = overlay / fake_gpu / "copy-size.json"
    path.parent.mkdir(parents=True)
    path.write_text("{}")
    status, _, err = gpuguide("bench", "run", "copy-size")
    assert status == 1
    assert f"The record {path} is damaged at schema_version" in err
    assert path.read_text() == "{}"


def test_an_interruption_is_one_sentence(
    gpuguide: Run, fake_gpu: str, overlay: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "run", interrupted)
    status, out, err = gpuguide("bench", "run", "ceilings")
    assert (status, out) == (1, "")
    assert err.endswith("Interrupted. What was finished is kept; run the same command again to go on.\n")


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")
def test_ctrl_c_keeps_what_is_finished(tmp_path: Path) -> None:
    """The real signal in a real process: on this machine's processor, so that there is time to send it."""
    words = [sys.executable, "-m", "gpuguide", "bench", "run", "copy-size", "--device", "cpu", "--out", str(tmp_path)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    before = ""
    while "[1/" not in before:
        line = process.stderr.readline()
        assert line, before
        before += line
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=600)
    assert (process.returncode, out) == (1, "")
    assert err.endswith("Interrupted. What was finished is kept; run the same command again to go on.\n")
    assert "Traceback" not in err
    kept = records.read(tmp_path / "cpu" / "copy-size.json")
    assert kept.cases[0].status == "ok"
    assert not list(tmp_path.glob("cpu/.*"))
