from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import typer.main

from gpuguide import __version__, cli
from gpuguide.errors import GpuguideError
from gpuguide.measure import records, runner, store

H100 = store.PUBLISHED_DEVICE
HEADER = "device,benchmark,contender,case,metric,unit,n,p5,p25,median,p75,p95,correct,measured_at,commit,stale"
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def gpuguide(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command line and return its exit status, standard output and standard error."""
    monkeypatch.setenv("COLUMNS", "100")

    def run(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["gpuguide", *map(str, words)])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        captured = capsys.readouterr()
        status = stop.value.code
        assert "Traceback" not in captured.err
        return status if isinstance(status, int) else 0, captured.out, captured.err

    return run


@pytest.fixture
def overlay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "overlay"
    monkeypatch.setenv("GPUGUIDE_RECORDS", str(folder))
    return folder


@pytest.fixture
def fake_gpu(monkeypatch: pytest.MonkeyPatch) -> str:
    """Measure a made-up RTX 4090, whose records go to its slug."""
    monkeypatch.setenv("GPUGUIDE_FAKE_DEVICE", "rtx-4090")
    monkeypatch.setattr(runner.case, "release_memory", lambda device: None)
    return "nvidia-geforce-rtx-4090"


def mended(path: Path, change: Callable[[records.Record], records.Record]) -> None:
    """Write a record again with a change, as a benchmark would have written it."""
    records.write(change(records.read(path)), path)


# --- every command ---------------------------------------------------------------------------------------


def commands(command: Any = None, name: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    command = command or typer.main.get_command(cli.app)
    yield name, command
    for inner, child in getattr(command, "commands", {}).items():
        yield from commands(child, (*name, inner))


COMMANDS = [name for name, command in commands() if not hasattr(command, "commands")]


def test_the_commands_of_the_contract_are_there() -> None:
    assert set(COMMANDS) >= {
        ("doctor",),
        *[("bench", name) for name in ("list", "run", "compare")],
        *[("records", name) for name in ("list", "show", "verify", "import")],
        ("claims", "check"),
    }


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_has_help_with_an_example_that_is_a_command(gpuguide: Run, command: tuple[str, ...]) -> None:
    status, out, err = gpuguide(*command, "--help")
    assert (status, err) == (0, "")
    examples = re.findall(r"Example: gpuguide ([a-z -]+)", " ".join(out.split()))
    assert examples
    assert tuple(examples[0].split()[: len(command)]) == command


@pytest.mark.parametrize("command", [(), ("bench",), ("records",), ("claims",)], ids=" ".join)
def test_a_command_without_its_second_word_shows_what_there_is(gpuguide: Run, command: tuple[str, ...]) -> None:
    status, out, err = gpuguide(*command)
    assert status == 2
    assert "Commands" in out + err


@pytest.mark.parametrize(
    "words",
    [
        ["bnech"],
        ["bench", "rum"],
        ["bench", "run", "--qiuck"],
        ["bench", "run", "--time-limit", "soon"],
        ["bench", "run", "--time-limit", "-1"],
        ["records", "list", "--format", "xml"],
        ["records", "show"],
        ["records", "import"],
        ["claims", "check", "--format", "xml"],
    ],
    ids=" ".join,
)
def test_a_command_that_is_written_wrongly_has_status_2_and_says_so_on_standard_error(
    gpuguide: Run, words: list[str]
) -> None:
    status, out, err = gpuguide(*words)
    assert (status, out) == (2, "")
    assert "Usage: " in err
    assert words[-1] in err or words[-2] in err or "Missing argument" in err


def test_the_version(gpuguide: Run) -> None:
    assert gpuguide("--version") == (0, f"{__version__}\n", "")


def test_the_module_is_the_command() -> None:
    words = [sys.executable, "-m", "gpuguide", "--version"]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout == f"{__version__}\n"


# --- names -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["bench", "run", "copysize"], r"no benchmark named 'copysize'\. Did you mean copy-size"),
        (["bench", "run", "ceilings", "matmul"], "Did you mean matmul-size"),
        (["bench", "run", "--device", "gpus", "--quick"], r"no device named 'gpus'\. Did you mean gpu"),
        (["bench", "compare", "nvidia-h100"], f"named 'nvidia-h100'.*Did you mean .*{H100}"),
        (["records", "show", "ceiling"], r"no benchmark named 'ceiling'\. Did you mean ceilings"),
        (["records", "show", "ceilings", "--device", "nvidia-h100"], f"Did you mean .*{H100}"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_an_unknown_name_lists_the_near_ones(gpuguide: Run, words: list[str], says: str) -> None:
    status, out, err = gpuguide(*words)
    assert (status, out) == (2, "")
    assert err.startswith("gpuguide: ")
    assert err.count("\n") == 1  # one sentence, no traceback
    assert re.search(says, err)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["records", "verify", "no/such/folder"], "no file or folder no/such/folder"),
        (["records", "import", "--publish", "no/such.json"], r"There is no record at no/such\.json"),
    ],
)
def test_a_file_that_is_not_there_is_named(gpuguide: Run, words: list[str], says: str) -> None:
    status, out, err = gpuguide(*words)
    assert (status, out) == (1, "")
    assert re.search(says, err)


# --- doctor ----------------------------------------------------------------------------------------------


def test_doctor_says_what_is_here(gpuguide: Run, monkeypatch: pytest.MonkeyPatch, overlay: Path) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    status, out, err = gpuguide("doctor")
    assert (status, err) == (0, "")
    assert torch.__version__ in out
    assert re.search(r"no +CUDA GPU +PyTorch sees none", out)
    assert str(overlay) in out


def test_doctor_fails_where_something_required_is_missing(gpuguide: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from gpuguide.hardware import doctor

    missing = doctor.Finding("PyTorch", False, "needed by everything", True)
    monkeypatch.setattr(doctor, "torch_build", lambda: missing)
    status, out, _ = gpuguide("doctor")
    assert status == 1
    assert "needed by everything" in out


# --- bench -----------------------------------------------------------------------------------------------


def test_bench_list_names_every_benchmark_and_where_it_was_measured(gpuguide: Run) -> None:
    status, out, err = gpuguide("bench", "list")
    assert (status, err) == (0, "")
    for name in ("ceilings", "copy-size", "matmul-size", "transfer-size", "timing-mistakes"):
        (row,) = re.findall(rf"^{name} .*(?:\n .*)*", out, re.MULTILINE)
        assert "?" in row
        assert H100 in row
        assert "stale" not in row


def test_bench_run_measures_stores_and_goes_on(gpuguide: Run, fake_gpu: str, overlay: Path) -> None:
    status, out, err = gpuguide("bench", "run", "ceilings", "timing-mistakes", "--commit", "c0ffee")
    assert (status, out) == (0, "")
    assert str(overlay) in err
    assert re.search(r"\[1/3, about \d+ (s|min) left\] ceilings", err)
    assert "[3/3, about 0 s left] timing-mistakes: shape=skinny" in err
    assert re.search(r"copy: [\d.]+ ms, [\d.]+ GB/s", err)
    assert "3 cases measured." in err
    assert sorted(path.name for path in (overlay / fake_gpu).iterdir()) == ["ceilings.json", "timing-mistakes.json"]
    assert records.read(overlay / fake_gpu / "ceilings.json").runs[0].commit == "c0ffee"
    status, _, err = gpuguide("bench", "run", "ceilings", "timing-mistakes")
    assert status == 0
    assert "0 cases measured; 3 were measured before (--again measures them anew)." in err
    status, _, err = gpuguide("bench", "run", "ceilings", "--again")
    assert "1 cases measured." in err


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
    assert "1 cases measured." in err
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
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (1, "")
    assert err.endswith("Interrupted. What was finished is kept; run the same command again to go on.\n")
    assert "Traceback" not in err
    kept = records.read(tmp_path / "cpu" / "copy-size.json")
    assert kept.cases[0].status == "ok"
    assert not list(tmp_path.glob("cpu/.*"))


# --- records ---------------------------------------------------------------------------------------------


def test_records_list_as_csv(gpuguide: Run) -> None:
    status, out, err = gpuguide("records", "list", "--format", "csv")
    assert (status, err) == (0, "")
    assert out.splitlines()[0] == HEADER
    rows = list(csv.DictReader(io.StringIO(out)))
    ours = [row for row in rows if row["device"] == H100]
    assert {row["benchmark"] for row in ours} >= {
        "ceilings",
        "copy-size",
        "matmul-size",
        "transfer-size",
        "timing-mistakes",
    }
    assert {row["stale"] for row in rows} == {"no"}
    assert {row["correct"] for row in rows} <= {"yes", "n/a"}
    for row in rows:
        case = json.loads(row["case"])
        assert json.dumps(case, sort_keys=True) == row["case"]
        assert re.fullmatch(r"[0-9a-f]{40}", row["commit"])
        assert re.match(r"\d{4}-\d\d-\d\dT", row["measured_at"])
        if int(row["n"]) > 1:
            quantiles = [float(row[name]) for name in ("p5", "p25", "median", "p75", "p95")]
            assert quantiles == sorted(quantiles)
    keys = [(row["device"], row["benchmark"], row["contender"], row["case"], row["metric"]) for row in rows]
    assert len(set(keys)) == len(keys)


def test_records_list_as_a_table(gpuguide: Run) -> None:
    status, out, _ = gpuguide("records", "list")
    assert status == 0
    (line,) = [line for line in out.splitlines() if re.match(rf"{H100} +ceilings ", line)]
    assert "12 of 12" in line
    assert line.rstrip().endswith("fresh")


def test_records_list_of_ones_own(gpuguide: Run, fake_gpu: str, overlay: Path) -> None:
    assert gpuguide("records", "list", "--mine", "--format", "csv") == (0, f"{HEADER}\n", "")
    gpuguide("bench", "run", "ceilings")
    status, out, _ = gpuguide("records", "list", "--mine", "--format", "csv")
    assert {row["device"] for row in csv.DictReader(io.StringIO(out))} == {fake_gpu}
    mended(
        overlay / fake_gpu / "ceilings.json",
        lambda record: replace(record, code_digest="sha256:" + "0" * 64),
    )
    status, out, _ = gpuguide("records", "list", "--mine")
    assert status == 0
    assert "stale, simulated" in out
    status, out, _ = gpuguide("records", "list", "--mine", "--format", "csv")
    assert {row["stale"] for row in csv.DictReader(io.StringIO(out))} == {"yes"}


def test_a_record_of_another_version_of_gpuguide_hinders_nothing(gpuguide: Run, fake_gpu: str, overlay: Path) -> None:
    """A benchmark that no longer exists: what was measured is listed as stale."""
    gpuguide("bench", "run", "ceilings")
    old = replace(records.read(overlay / fake_gpu / "ceilings.json"), benchmark="gone")
    records.write(old, overlay / fake_gpu / "gone.json")
    for words in (["bench", "list"], ["records", "list", "--mine"], ["bench", "compare"]):
        assert gpuguide(*words)[0] == 0
    assert re.search(r"gone .*stale", gpuguide("records", "list", "--mine")[1])
    status, out, _ = gpuguide("records", "verify", overlay)
    assert status == 1
    assert "gone: stale" in out


def test_records_show(gpuguide: Run) -> None:
    status, out, err = gpuguide("records", "show", "copy-size", "--device", H100)
    assert (status, err) == (0, "")
    assert out.startswith("copy-size on NVIDIA H100 80GB HBM3 · driver ")
    assert len(re.findall(r"copy +working_set=\d+ +time .*\n +bandwidth +[\d.]+ [GT]B/s", out)) == 18


def test_records_show_of_every_device_and_of_ones_own(gpuguide: Run, fake_gpu: str, overlay: Path) -> None:
    gpuguide("bench", "run", "ceilings")
    _, out, _ = gpuguide("records", "show", "ceilings")
    assert "ceilings on NVIDIA H100 80GB HBM3" in out
    assert "ceilings on NVIDIA GeForce RTX 4090" in out
    assert "simulated, not measured" in out


def test_records_show_why_there_is_no_number(gpuguide: Run, fake_gpu: str, overlay: Path) -> None:
    """A reason is shown as it is: brackets in it are no markup."""
    gpuguide("bench", "run", "ceilings")
    reason = "ValueError: expected shape [2, 3] [/bold], got [red]4[/red] :cat:"

    def broken(record: records.Record) -> records.Record:
        case = records.Case({}, record.cases[0].contender, 0, "failed", reason)
        return replace(record, cases=(case, *record.cases[1:]))

    mended(overlay / fake_gpu / "ceilings.json", broken)
    status, out, _ = gpuguide("records", "show", "ceilings", "--device", fake_gpu)
    assert status == 0
    assert f"copy: failed, {reason}" in " ".join(out.split())
    status, out, _ = gpuguide("records", "verify", overlay)
    assert status == 0
    assert reason in " ".join(out.split())


def test_records_show_of_what_nobody_measured(gpuguide: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(store, "published_folder", lambda: tmp_path)
    status, out, err = gpuguide("records", "show", "ceilings")
    assert (status, out) == (1, "")
    assert "ceilings" in err
    assert "gpuguide bench run ceilings" in err


def test_records_verify_of_everything(gpuguide: Run) -> None:
    status, out, err = gpuguide("records", "verify")
    assert status == 0
    assert err == f"{len(store.published_records())} records, 0 damaged or stale.\n"
    assert f"{H100}/ceilings: good" in out


def test_records_verify_names_each_damaged_file_and_its_field(gpuguide: Run, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(store.published_folder() / H100, folder / H100)
    edited, cut = folder / H100 / "ceilings.json", folder / H100 / "copy-size.json"
    edited.write_text(edited.read_text().replace('"seed": 0', '"seed": 1'))
    cut.write_text(cut.read_text()[:5000])
    status, out, err = gpuguide("records", "verify", folder)
    assert status == 1
    assert f"{edited} is damaged at checksum" in err
    assert re.search(rf"{re.escape(str(cut))} is damaged at line \d+, column \d+", err)
    assert "2 damaged or stale." in err
    assert f"{H100}/matmul-size: good" in out
    assert gpuguide("records", "verify", edited)[0] == 1
    assert gpuguide("records", "verify", folder / H100 / "matmul-size.json")[0] == 0


def test_records_verify_of_a_devices_folder_and_of_an_empty_one(gpuguide: Run, tmp_path: Path) -> None:
    """A check of nothing does not pass."""
    shutil.copytree(store.published_folder() / H100, tmp_path / H100)
    status, _, err = gpuguide("records", "verify", tmp_path / H100)
    assert status == 0
    assert not err.startswith("0 records")
    (tmp_path / "empty").mkdir()
    status, out, err = gpuguide("records", "verify", tmp_path / "empty")
    assert (status, out) == (1, "")
    assert "no records in" in err


def test_records_verify_works_inside_a_devices_folder(
    gpuguide: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(store.published_folder() / H100, tmp_path / H100)
    monkeypatch.chdir(tmp_path / H100)
    assert gpuguide("records", "verify", "ceilings.json")[0] == 0


def test_records_verify_finds_what_is_stale(gpuguide: Run, tmp_path: Path) -> None:
    path = tmp_path / "cpu" / "ceilings.json"
    path.parent.mkdir()
    shutil.copy(store.published_folder() / "cpu" / "ceilings.json", path)
    mended(path, lambda record: replace(record, harness_version=records.HARNESS_VERSION + 1))
    status, out, err = gpuguide("records", "verify", tmp_path)
    assert status == 1
    assert "cpu/ceilings: stale" in out
    assert err == "1 records, 1 damaged or stale.\n"


def test_records_import_into_ones_own(gpuguide: Run, overlay: Path, tmp_path: Path) -> None:
    source = store.published_folder() / "cpu"
    status, out, err = gpuguide("records", "import", source)
    assert (status, err) == (0, "")
    assert out.splitlines() == [f"cpu/{path.stem}" for path in sorted(source.glob("*.json"))]
    assert (overlay / "cpu" / "ceilings.json").read_bytes() == (source / "ceilings.json").read_bytes()


def test_records_import_without_a_place(gpuguide: Run) -> None:
    status, out, err = gpuguide("records", "import", store.published_folder())
    assert (status, out) == (1, "")
    assert "GPUGUIDE_RECORDS is set and empty" in err


def test_records_import_publishes_no_simulated_record(
    gpuguide: Run, fake_gpu: str, overlay: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gpuguide("bench", "run", "ceilings", "--commit", "c0ffee")
    monkeypatch.setattr(store, "published_folder", lambda: tmp_path / "published")
    status, out, err = gpuguide("records", "import", "--publish", overlay)
    assert (status, out) == (1, "")
    assert "ceilings.json cannot be published: its times come from a fake device" in err
    assert not (tmp_path / "published").exists()


# --- claims ----------------------------------------------------------------------------------------------


def test_claims_check_tells_what_does_not_hold(gpuguide: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from types import SimpleNamespace as Thing

    from gpuguide import claims as ledger

    outcomes = [
        Thing(claim=Thing(id="good", place="a.toml:1"), ok=True, detail=""),
        Thing(claim=Thing(id="bad", place="a.toml:9"), ok=False, detail="p25 is 0.98 [not above 1]"),
    ]
    monkeypatch.setattr(ledger, "load", list)
    monkeypatch.setattr(ledger, "check", lambda claims: outcomes)
    assert gpuguide("claims", "check") == (
        1,
        "a.toml:9: bad: p25 is 0.98 [not above 1]\n",
        "2 claims checked, 1 do not hold.\n"
        "Correct the row: its verdict, its text, or what it names. Or measure again what it reads.\n",
    )
    status, out, _ = gpuguide("claims", "check", "--format", "json")
    assert status == 1
    assert [(row["id"], row["ok"]) for row in json.loads(out)] == [("good", True), ("bad", False)]
    monkeypatch.setattr(ledger, "check", lambda claims: outcomes[:1])
    assert gpuguide("claims", "check") == (0, "", "1 claims checked, 0 do not hold.\n")


# --- the whole way, in processes of its own ------------------------------------------------------------


def test_output_can_be_cut_off(tmp_path: Path) -> None:
    """As in ``gpuguide records list --format csv | head -1``."""
    words = [sys.executable, "-m", "gpuguide", "records", "list", "--format", "csv"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == f"{HEADER}\n"
    process.stdout.close()
    assert "Traceback" not in process.stderr.read()
    assert process.wait(60) in (0, 1)
    process.stderr.close()


def test_an_error_of_ours_needs_no_traceback(monkeypatch: pytest.MonkeyPatch, gpuguide: Run) -> None:
    def fail() -> None:
        raise GpuguideError("There is [no] reason, see /a/b.")

    monkeypatch.setattr(cli, "app", fail)
    assert gpuguide() == (1, "", "gpuguide: There is [no] reason, see /a/b.\n")


def test_nothing_heavy_is_imported_for_a_list(tmp_path: Path) -> None:
    code = (
        "import sys; from gpuguide import cli; sys.argv = ['gpuguide', 'records', 'list'];\n"
        "try: cli.main()\nexcept SystemExit: pass\n"
        "assert 'torch' not in sys.modules, 'torch'"
    )
    environment = {**os.environ, "GPUGUIDE_RECORDS": ""}
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL, env=environment)


# --- models ----------------------------------------------------------------------------------------------


def test_evaluate_prints_the_three_units(gpuguide: Run, tmp_path: Path) -> None:
    status, out, err = gpuguide("models", "evaluate", "--model", "draft", "--device", "cpu")
    assert status == 0
    assert err == "draft on the held-out text\n"
    assert re.fullmatch(
        r"loss +\d\.\d{4} nats a token *\n"
        r"perplexity +\d+\.\d\d *\nbits per byte +\d\.\d{4} *\ntext +\d+ tokens, \d+ bytes *\n",
        out,
    )
    text = tmp_path / "own.py"
    text.write_bytes(b"import os\n\xff")
    status, out, err = gpuguide("models", "evaluate", "--model", "draft", "--text", text, "--device", "cpu")
    assert (status, err.replace("\n", "")) == (0, f"draft on {text}")
    assert "11 bytes" in out


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (("evaluate", "--model", "drft"), 2, "There is no model named 'drft'. Did you mean draft"),
        (("evaluate", "--text", "nowhere.py"), 1, "There is no file nowhere.py."),
        (("train", "large"), 2, "There is no recipe named 'large'"),
        (("train", "draft", "--steps", "0"), 2, "steps"),
    ],
)
def test_models_with_wrong_words(gpuguide: Run, words: tuple[str, ...], status: int, message: str) -> None:
    found, _, err = gpuguide("models", *words)
    assert found == status
    assert message in err


def test_train_says_how_long_and_is_resumed(gpuguide: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gpuguide.models import corpus, training
    from gpuguide.models.gpt2 import Config

    sources = [corpus.Source(f"m{index}.py", f"def f{index}(x):\n    return x\n" * 20) for index in range(40)]
    tiny = training.Recipe(Config(300, 16, 1, 1, 8), steps=200, batch=2, warm_up=3)
    monkeypatch.setattr(corpus, "standard_library", lambda: sources)
    monkeypatch.setattr(training, "VOCAB_SIZE", 300)
    monkeypatch.setattr(training, "prepare", lambda given, prepare=training.prepare: prepare(given, 300))
    monkeypatch.setattr(training, "RECIPES", {"draft": tiny})
    save = training._State.save

    def interrupted(state: training._State, seconds: float) -> None:
        save(state, seconds)
        raise KeyboardInterrupt

    monkeypatch.setattr(training._State, "save", interrupted)
    status, _, err = gpuguide("models", "train", "--out", tmp_path, "--device", "cpu")
    assert status == 1
    assert "[draft] step 3/200: loss " in err
    assert "token/s, about " in err
    assert err.endswith("What was finished is kept; run the same command again to go on.\n")
    monkeypatch.setattr(training._State, "save", save)
    status, out, err = gpuguide("models", "train", "--out", tmp_path, "--device", "cpu")
    assert status == 0
    assert "[draft] step 6/200" in err
    assert "bits per byte" in out
    assert (tmp_path / "draft" / "model.safetensors").exists()
