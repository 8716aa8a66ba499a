from __future__ import annotations

import csv
import io
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gpuguide.measure import folders, records, reference_gpu, store
from gpuguide.measure.digest import equivalent
from gpuguide.measure.digest.equivalent import Equivalence

OURS = reference_gpu.slug()
HEADER = "device,benchmark,contender,case,metric,unit,n,p5,p25,median,p75,p95,correct,measured_at,commit,stale"
Run = Callable[..., tuple[int, str, str]]


def mended(path: Path, change: Callable[[records.Record], records.Record]) -> None:
    """Write a record again with a change, as a benchmark would have written it."""
    records.write(change(records.read(path)), path)


def test_records_list_as_csv(gpuguide: Run, fresh: Path) -> None:
    status, out, err = gpuguide("records", "list", "--format", "csv")
    assert (status, err) == (0, "")
    assert out.splitlines()[0] == HEADER
    rows = list(csv.DictReader(io.StringIO(out)))
    ours = [row for row in rows if row["device"] == OURS]
    assert {row["benchmark"] for row in ours} >= {
        "ceilings",
        "copy-size",
        "matmul-size",
        "transfer-size",
        "timing-mistakes",
    }
    assert {row["stale"] for row in ours} == {"no"}
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


def test_records_list_as_a_table(gpuguide: Run, fresh: Path) -> None:
    status, out, _ = gpuguide("records", "list")
    assert status == 0
    (line,) = [line for line in out.splitlines() if re.match(rf"{OURS} +ceilings ", line)]
    assert "12 of 12" in line
    assert line.rstrip().endswith("fresh")


def test_records_list_of_ones_own(gpuguide: Run, fake_gpu: str, overlay: Path) -> None:
    overlay.mkdir()
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
    status, out, err = gpuguide("records", "show", "copy-size", "--device", OURS)
    assert (status, err) == (0, "")
    assert out.startswith(f"copy-size on {reference_gpu.name()} · driver ")
    assert len(re.findall(r"\nworking_set=\d+\ncopy +time .*\n +bandwidth +[\d.]+ [GT]B/s", out)) == 18


def test_records_show_of_every_device_and_of_ones_own(gpuguide: Run, fake_gpu: str, overlay: Path) -> None:
    gpuguide("bench", "run", "ceilings")
    _, out, _ = gpuguide("records", "show", "ceilings")
    assert "ceilings on NVIDIA H100 80GB HBM3" in out
    assert "ceilings on NVIDIA GeForce RTX 4090" in out
    assert "simulated, not measured" in out


def test_records_show_how_turns_spread(gpuguide: Run, fake_gpu: str, overlay: Path) -> None:
    gpuguide("bench", "run", "ceilings")
    time = records.metric("s", [1.00, 1.04, 1.10, 1.14], [2, 2])

    def drifting(record: records.Record) -> records.Record:
        first, *others = record.cases
        return replace(record, cases=(replace(first, measured={"time": time}, rates={}), *others))

    mended(overlay / fake_gpu / "ceilings.json", drifting)
    _, out, _ = gpuguide("records", "show", "ceilings", "--device", fake_gpu)
    assert re.search(r"copy +time +1\.07 s +1\.03 s +1\.11 s +4 +1\.9% +9\.3%", out)


def test_records_show_the_versions_of_what_is_called(gpuguide: Run, fake_gpu: str, overlay: Path) -> None:
    """One line for each run, since a later one may have had another version."""
    gpuguide("bench", "run", "ceilings")

    def resumed(record: records.Record) -> records.Record:
        (run,) = record.runs
        runs = tuple(replace(run, versions={**run.versions, "cublas": number}) for number in ("13.1.0", "13.2.1"))
        return replace(record, runs=runs, cases=(replace(record.cases[0], run=1), *record.cases[1:]))

    mended(overlay / fake_gpu / "ceilings.json", resumed)
    _, out, _ = gpuguide("records", "show", "ceilings", "--device", fake_gpu)
    stamps = [line for line in out.splitlines() if line.startswith("ceilings on")]
    assert ["cuBLAS 13.1.0" in stamps[0], "cuBLAS 13.2.1" in stamps[1]] == [True, True]


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
    monkeypatch.setattr(folders, "published_folder", lambda: tmp_path)
    status, out, err = gpuguide("records", "show", "ceilings")
    assert (status, out) == (1, "")
    assert "ceilings" in err
    assert "gpuguide bench run ceilings" in err


def test_records_verify_of_everything(gpuguide: Run, fresh: Path) -> None:
    status, out, err = gpuguide("records", "verify")
    assert status == 0
    assert err == f"{len(store.load_all_published())} records, 0 damaged or stale.\n"
    assert f"{OURS}/ceilings: good" in out


def test_records_verify_finds_a_change_that_is_called_equivalent_to_nothing(gpuguide: Run, fresh: Path) -> None:
    digests = ["sha256:" + letter * 64 for letter in "ab"]
    equivalent.write(fresh, [Equivalence("copy-size", *digests, "1" * 40, "A parameter was renamed.")])
    status, _, err = gpuguide("records", "verify")
    assert status == 1
    assert digests[0] in err


@pytest.mark.parametrize(
    ("words", "named"), [(["--reason", " "], "reason"), (["--reason", "a", "--benchmark", "copysize"], "copy-size")]
)
def test_records_equivalent_refuses_what_it_cannot_write(gpuguide: Run, words: list[str], named: str) -> None:
    status, _, err = gpuguide("records", "equivalent", "HEAD", *words)
    assert status == 2
    assert named in err


def test_records_verify_names_each_damaged_file_and_its_field(gpuguide: Run, tmp_path: Path, fresh: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(fresh / OURS, folder / OURS)
    edited, cut = folder / OURS / "ceilings.json", folder / OURS / "copy-size.json"
    edited.write_text(edited.read_text().replace('"seed":0', '"seed":1'))
    cut.write_text(cut.read_text()[:5000])
    status, out, err = gpuguide("records", "verify", folder)
    assert status == 1
    assert f"{edited} is damaged at checksum" in err
    assert re.search(rf"{re.escape(str(cut))} is damaged at line \d+, column \d+", err)
    assert "2 damaged or stale." in err
    assert f"{OURS}/matmul-size: good" in out
    assert gpuguide("records", "verify", edited)[0] == 1
    assert gpuguide("records", "verify", folder / OURS / "matmul-size.json")[0] == 0


def test_records_verify_of_a_devices_folder_and_of_an_empty_one(gpuguide: Run, tmp_path: Path, fresh: Path) -> None:
    """A check of nothing does not pass."""
    shutil.copytree(fresh / OURS, tmp_path / OURS)
    status, _, err = gpuguide("records", "verify", tmp_path / OURS)
    assert status == 0
    assert not err.startswith("0 records")
    (tmp_path / "empty").mkdir()
    status, out, err = gpuguide("records", "verify", tmp_path / "empty")
    assert (status, out) == (1, "")
    assert "no records in" in err


def test_records_verify_works_inside_a_devices_folder(
    gpuguide: Run, tmp_path: Path, fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(fresh / OURS, tmp_path / OURS)
    monkeypatch.chdir(tmp_path / OURS)
    assert gpuguide("records", "verify", "ceilings.json")[0] == 0


def test_records_verify_finds_what_is_stale(gpuguide: Run, tmp_path: Path) -> None:
    path = tmp_path / "cpu" / "ceilings.json"
    path.parent.mkdir()
    shutil.copy(folders.published_folder() / "cpu" / "ceilings.json", path)
    mended(path, lambda record: replace(record, harness_version=records.HARNESS_VERSION + 1))
    status, out, err = gpuguide("records", "verify", tmp_path)
    assert status == 1
    assert "cpu/ceilings: stale" in out
    assert err == "1 record, 1 damaged or stale.\n"


def test_records_import_into_ones_own(gpuguide: Run, overlay: Path, tmp_path: Path) -> None:
    source = folders.published_folder() / "cpu"
    status, out, err = gpuguide("records", "import", source)
    assert (status, err) == (0, "")
    assert out.splitlines() == [f"cpu/{path.stem}" for path in sorted(source.glob("*.json"))]
    taken, given = (records.read(folder / "cpu" / "ceilings.json") for folder in (overlay, folders.published_folder()))
    assert replace(taken, path=None) == replace(given, path=None)


def test_records_import_refuses_to_lose_cases_unless_told(gpuguide: Run, overlay: Path, tmp_path: Path) -> None:
    assert gpuguide("records", "import", folders.published_folder() / "cpu" / "copy-size.json")[0] == 0
    mine = overlay / "cpu" / "copy-size.json"
    fewer = tmp_path / "cpu" / "copy-size.json"
    whole = records.read(mine)
    records.write(replace(whole, cases=whole.cases[:3]), fewer)
    status, out, err = gpuguide("records", "import", fewer)
    assert (status, out) == (1, "")
    assert f"it lacks {len(whole.cases) - 3} of the {len(whole.cases)} cases measured in" in " ".join(err.split())
    assert records.read(mine) == whole
    assert gpuguide("records", "import", "--replace", fewer)[0] == 0
    assert len(records.read(mine).cases) == 3


READING = (["records", "list", "--mine"], ["records", "verify"], ["bench", "list"], ["bench", "compare"])


def test_an_absent_folder_is_refused_by_what_reads_and_made_by_what_writes(
    gpuguide: Run, fake_gpu: str, overlay: Path
) -> None:
    for words in READING:
        status, out, err = gpuguide(*words)
        assert (status, out) == (1, ""), words
        assert f"GPUGUIDE_RECORDS names the folder {overlay}, which does not exist." in " ".join(err.split())
    assert not overlay.exists()
    assert str(overlay) in "".join(gpuguide("doctor")[1].split())
    assert gpuguide("records", "import", folders.published_folder() / "cpu")[0] == 0
    assert gpuguide("records", "list", "--mine")[0] == 0


def test_a_file_in_place_of_the_folder_is_refused(gpuguide: Run, fake_gpu: str, overlay: Path) -> None:
    overlay.write_text("")
    for words in (
        *READING,
        ["bench", "run", "ceilings"],
        ["records", "import", str(folders.published_folder() / "cpu")],
    ):
        status, _, err = gpuguide(*words)
        assert status == 1, words
        assert f"GPUGUIDE_RECORDS names {overlay}, which is a file." in " ".join(err.split())
    assert overlay.read_text() == ""


def test_records_import_without_a_place(gpuguide: Run) -> None:
    status, out, err = gpuguide("records", "import", folders.published_folder())
    assert (status, out) == (1, "")
    assert "GPUGUIDE_RECORDS is set and empty" in err


def test_records_import_publishes_no_simulated_record(
    gpuguide: Run, fake_gpu: str, overlay: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gpuguide("bench", "run", "ceilings", "--commit", "c0ffee")
    monkeypatch.setattr(folders, "published_folder", lambda: tmp_path / "published")
    status, out, err = gpuguide("records", "import", "--publish", overlay)
    assert (status, out) == (1, "")
    assert "ceilings.json cannot be published: its times come from a fake device" in err
    assert not (tmp_path / "published").exists()
