from __future__ import annotations

import csv
import io
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import synthetic_records as synthetic

from gpuguide.claims import pages
from gpuguide.errors import GpuguideError
from gpuguide.measure import benchmark, digest, export, folders, importing, page_gpu, records, reference_gpu, store
from gpuguide.measure.records import Case, DamagedRecord, Rate, Record

HEADER = "device,benchmark,contender,case,metric,unit,n,p5,p25,median,p75,p95,correct,measured_at,commit,stale"
COMMIT = "43e7d29" + "0" * 33
RUN = synthetic.run(commit=COMMIT, simulated=False)
SAMPLES = [float(x) for x in np.random.default_rng(0).lognormal(-7, 0.2, 37)]


def a_record(benchmark: str = "copy-size", device: str = reference_gpu.slug(), **run: Any) -> Record:
    """Return a fresh record with a good case, one of a single sample, and three that say why there is no number."""
    time = records.metric("s", SAMPLES)
    loss = {"time": records.metric("s", [2.5]), "loss": records.metric("nat", [3.25])}
    rates = {"bandwidth": Rate("B/s", 4)}
    cases = (
        Case({"working_set": 2, "causal": True}, "copy", 0, "ok", "", "yes", {"time": time}, rates),
        Case({"working_set": 4, "causal": False}, "copy", 0, "ok", "", "n/a", loss),
        Case({"working_set": 8, "causal": True}, "copy", 0, "skipped", "too large"),
        Case({"working_set": 16, "causal": True}, "copy", 0, "failed", "wrong result"),
        Case({"working_set": 32, "causal": True}, "copy", 0, "out-of-memory", "80 GiB"),
    )
    return Record(
        benchmark, device, records.HARNESS_VERSION, digest.benchmark_digest(benchmark), (replace(RUN, **run),), cases
    )


Save = Callable[..., Path]


@pytest.fixture
def save() -> Save:
    def save(record: Record, folder: Path) -> Path:
        path = records.write(record, folder / record.device / f"{record.benchmark}.json").path
        assert path is not None
        return path

    return save


@pytest.fixture
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "published"
    folder.mkdir()
    monkeypatch.setattr(folders, "published_folder", lambda: folder)
    return folder


@pytest.fixture
def overlay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "overlay"
    folder.mkdir()
    monkeypatch.setenv("GPUGUIDE_RECORDS", str(folder))
    return folder


# --- where records are -----------------------------------------------------------------------------------


def test_the_overlay_is_where_the_variable_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GPUGUIDE_RECORDS", str(tmp_path))
    assert folders.overlay_folder() == tmp_path
    monkeypatch.setenv("GPUGUIDE_RECORDS", "~/records")
    assert folders.overlay_to_write() == Path.home() / "records"


def test_a_relative_name_counts_from_where_it_is_first_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, save: Save
) -> None:
    (tmp_path / "elsewhere").mkdir()
    save(a_record(), tmp_path / "mine")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GPUGUIDE_RECORDS", "mine")
    assert folders.overlay_folder() == tmp_path / "mine"
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert folders.overlay_folder() == tmp_path / "mine"
    assert [store.is_mine(record) for record in store.load_all_mine()] == [True]
    read = "from gpuguide.measure import store; print(len(store.load_mine('copy-size')))"
    assert subprocess.run([sys.executable, "-c", read], capture_output=True, text=True, check=True).stdout == "1\n"


@pytest.mark.parametrize("kind", ["absent", "file"])
def test_a_named_folder_that_is_none_is_refused_with_its_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str
) -> None:
    place = tmp_path / "mine"
    monkeypatch.setenv("GPUGUIDE_RECORDS", str(place))
    if kind == "file":
        place.write_text("")
    for read in (
        folders.overlay_folder,
        store.load_all_mine,
        folders.record_folders,
        lambda: store.load_mine("copy-size"),
    ):
        with pytest.raises(GpuguideError, match=rf"GPUGUIDE_RECORDS names .*{place}"):
            read()
    if kind == "file":
        with pytest.raises(GpuguideError, match=rf"GPUGUIDE_RECORDS names {place}, which is a file"):
            folders.overlay_to_write()
    else:
        assert folders.overlay_to_write() == place


def test_an_empty_variable_means_no_overlay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUGUIDE_RECORDS", "")
    assert folders.overlay_folder() is None
    assert store.load_mine("copy-size") == store.load_all_mine() == []
    assert folders.record_folders() == [folders.published_folder()]


def test_without_the_variable_the_overlay_is_among_the_users_data(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("GPUGUIDE_RECORDS")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    folder = folders.overlay_folder()
    assert folder is not None
    assert folder.is_absolute()
    assert folder.parts[-2:] == ("gpuguide", "records")
    assert store.load_all_mine() == []  # it need not exist


def test_a_published_record_and_ones_own_of_the_same_device_stand_side_by_side(
    published: Path, overlay: Path, save: Save
) -> None:
    save(a_record(commit="published"), published)
    save(a_record(commit="mine"), overlay)
    save(a_record(device="cpu", commit="mine"), overlay)
    assert store.load_published("copy-size").runs[0].commit == "published"
    assert [(r.device, r.runs[0].commit) for r in store.load_mine("copy-size")] == [
        ("cpu", "mine"),
        (reference_gpu.slug(), "mine"),
    ]
    assert [r.runs[0].commit for r in store.load_all_published()] == ["published"]
    assert folders.record_files("copy-size") == [
        published / reference_gpu.slug() / "copy-size.json",
        overlay / "cpu" / "copy-size.json",
        overlay / reference_gpu.slug() / "copy-size.json",
    ]


def test_a_record_is_read_again_when_its_file_changes(published: Path, save: Save) -> None:
    path = save(a_record(commit="early"), published)
    assert store.load_published("copy-size") is store.load_published("copy-size")
    save(a_record(commit="later still"), published)
    assert store.load_published("copy-size").runs[0].commit == "later still"
    text = path.read_text()
    path.write_text(text.replace("later still", "edited by hand"))
    with pytest.raises(DamagedRecord, match="checksum"):
        store.load_published("copy-size")


@pytest.mark.parametrize(
    ("benchmark", "device", "says"),
    [
        ("copysize", reference_gpu.slug(), ["benchmark", "'copysize'", "Did you mean copy-size"]),
        ("copy-size", "nvidia-h1", ["device", "'nvidia-h1'", f"Did you mean {reference_gpu.slug()}"]),
        ("matmul-size", reference_gpu.slug(), ["no published record", "'matmul-size'", reference_gpu.slug()]),
    ],
)
def test_what_is_not_published_says_what_is(
    published: Path, save: Save, benchmark: str, device: str, says: list[str]
) -> None:
    save(a_record(), published)
    with pytest.raises(GpuguideError) as caught:
        store.load_published(benchmark, device)
    assert not [text for text in says if text not in str(caught.value)]


@pytest.fixture
def setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Write the file that names the reference GPU."""
    path = tmp_path / "reference.toml"
    monkeypatch.setattr(reference_gpu, "settings_file", lambda: path)

    def write(text: str) -> None:
        path.write_text(text)

    return write


def test_the_setting_decides_whose_record_is_meant(published: Path, save: Save, setting: Callable[[str], None]) -> None:
    for device in ("nvidia-h100", "nvidia-h200", "cpu"):
        save(a_record(device=device, device_name=device), published)
    for device in ("nvidia-h100", "nvidia-h200"):
        setting(f'device = "{device}"\n')
        assert (
            reference_gpu.slug() == store.load_published("copy-size").device == reference_gpu.load_any_record().device
        )
        found = {record.device: reference_gpu.is_reference(record) for record in store.load_all_published()}
        assert found == {"cpu": False, "nvidia-h100": device == "nvidia-h100", "nvidia-h200": device == "nvidia-h200"}
        assert {record.device for record in store.load_all_published() if reference_gpu.is_quotable(record)} == {
            device,
            "cpu",
        }


def test_what_needs_several_gpus_is_found_with_the_fewest(
    published: Path, save: Save, setting: Callable[[str], None]
) -> None:
    setting('device = "nvidia-h200"')
    for device in ("nvidia-h100", "2x-nvidia-h100", "16x-nvidia-h200", "8x-nvidia-h200"):
        save(a_record(device=device), published)
    assert reference_gpu.slugs() == ["nvidia-h200", "8x-nvidia-h200", "16x-nvidia-h200"]
    assert store.load_published("copy-size").device == "8x-nvidia-h200"
    assert store.load_published("copy-size", "16x").device == "16x-nvidia-h200"
    save(a_record(device="nvidia-h200"), published)
    assert store.load_published("copy-size").device == "nvidia-h200"
    with pytest.raises(GpuguideError, match=r"no device with published records named '4x-nvidia-h200'"):
        store.load_published("copy-size", "4x")


def test_what_only_another_gpu_has_says_which_one_and_how_to_measure_it(
    published: Path, save: Save, setting: Callable[[str], None]
) -> None:
    setting('device = "nvidia-h200"')
    save(a_record("ceilings", device="nvidia-h200"), published)
    save(a_record(device="nvidia-h100"), published)
    with pytest.raises(
        GpuguideError, match=r"on nvidia-h200, only on nvidia-h100\. Measure it with 'gpuguide bench run"
    ):
        store.load_published("copy-size")


def test_a_setting_without_records_says_which_there_are(
    published: Path, save: Save, setting: Callable[[str], None]
) -> None:
    setting('device = "nvidia-b200"')
    save(a_record(device="2x-nvidia-h100"), published)
    save(a_record(device="cpu"), published)
    for read in (lambda: store.load_published("copy-size"), reference_gpu.load_any_record, reference_gpu.check_records):
        with pytest.raises(GpuguideError, match=r"'nvidia-b200', of which .* There are records of nvidia-h100\.$"):
            read()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"device = ", "is not TOML"),
        (b"device = '\xff'", "is not TOML"),
        (b"", "names no reference GPU"),
        (b"gpu = 'x'", "names no reference GPU"),
        (b"device = 'nvidia-h200'\nprose = 'nvidia-h100'", "sets prose, which nothing reads"),
        (b"device = 'cpu'", "names a processor"),
        (b"device = 3", "names 3. Name one device"),
        (b"device = '2x-nvidia-h200'", "names '2x-nvidia-h200'. Name one device"),
        (b"device = '../x'", "names '../x'. Name one device"),
    ],
)
def test_a_setting_that_names_no_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: bytes, says: str
) -> None:
    path = tmp_path / "reference.toml"
    path.write_bytes(text)
    monkeypatch.setattr(reference_gpu, "settings_file", lambda: path)
    with pytest.raises(GpuguideError, match=rf"reference\.toml {says}"):
        reference_gpu.slug()


def test_a_setting_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference_gpu, "settings_file", lambda: tmp_path / "reference.toml")
    with pytest.raises(GpuguideError, match=r'reference\.toml cannot be read: No such file .* device = "nvidia-h200"'):
        reference_gpu.slug()


def test_a_page_reads_what_it_declares_and_nothing_else(
    published: Path, overlay: Path, save: Save, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(a_record(), published)
    monkeypatch.setenv("GPUGUIDE_DECLARED", "ceilings,copy-size")
    assert store.load_published("copy-size").benchmark == "copy-size"
    assert store.load_mine("copy-size") == []
    for declared in ("ceilings", "", "copy"):
        monkeypatch.setenv("GPUGUIDE_DECLARED", declared)
        for read in (store.load_published, store.load_mine):
            with pytest.raises(GpuguideError, match=r"'copy-size'.*does not declare.*benchmarks: \[copy-size\]"):
                read("copy-size")


# --- CSV -------------------------------------------------------------------------------------------------


def test_csv_has_the_columns_of_the_contract() -> None:
    assert export.csv_text([]) == HEADER + "\n"


def test_csv_rows_hold_what_was_measured() -> None:
    rows = list(csv.DictReader(io.StringIO(export.csv_text([a_record()]))))
    assert [(row["case"], row["metric"], row["unit"], row["n"], row["correct"]) for row in rows] == [
        ('{"causal": true, "working_set": 2}', "time", "s", "37", "yes"),
        ('{"causal": true, "working_set": 2}', "bandwidth", "B/s", "37", "yes"),
        ('{"causal": false, "working_set": 4}', "time", "s", "1", "n/a"),
        ('{"causal": false, "working_set": 4}', "loss", "nat", "1", "n/a"),
    ]
    assert {row["device"] for row in rows} == {reference_gpu.slug()}
    assert {(row["benchmark"], row["contender"]) for row in rows} == {("copy-size", "copy")}
    assert {(row["measured_at"], row["commit"], row["stale"]) for row in rows} == {(RUN.finished_at, RUN.commit, "no")}
    for row, samples in zip(rows, [SAMPLES, [4 / seconds for seconds in SAMPLES]], strict=False):
        found = [float(row[name]) for name in ("p5", "p25", "median", "p75", "p95")]
        np.testing.assert_allclose(found, np.quantile(samples, [0.05, 0.25, 0.5, 0.75, 0.95]), rtol=1e-5)
    assert [rows[3][name] for name in ("p5", "p25", "median", "p75", "p95")] == ["", "", "3.25", "", ""]


def test_csv_says_what_is_stale_and_names_no_commit_where_there_is_none() -> None:
    record = replace(a_record(commit=None), code_digest="sha256:" + "0" * 64)
    rows = list(csv.DictReader(io.StringIO(export.csv_text([record]))))
    assert {(row["commit"], row["stale"]) for row in rows} == {("", "yes")}


def test_each_row_names_the_run_that_measured_it() -> None:
    record = a_record()
    later = replace(RUN, finished_at="2026-12-01T00:00:00.000+00:00", commit="later")
    cases = (record.cases[0], replace(record.cases[1], run=1))
    rows = export.rows(replace(record, runs=(RUN, later), cases=cases))
    assert [row[-2] for row in rows] == [RUN.commit] * 2 + ["later"] * 2
    assert rows[-1][-3] == later.finished_at


# --- import ----------------------------------------------------------------------------------------------


def test_records_are_imported_from_files_and_folders(tmp_path: Path, overlay: Path, save: Save) -> None:
    one = save(a_record(), tmp_path / "a")
    save(a_record("matmul-size", "cpu", simulated=True, commit=None), tmp_path / "b" / "deeper")
    taken = importing.import_records([one, tmp_path / "b"], overlay, publish=False)
    assert [(record.device, record.benchmark) for record in taken] == [
        (reference_gpu.slug(), "copy-size"),
        ("cpu", "matmul-size"),
    ]
    assert [record.path for record in taken] == [
        overlay / reference_gpu.slug() / "copy-size.json",
        overlay / "cpu" / "matmul-size.json",
    ]
    assert (overlay / reference_gpu.slug() / "copy-size.json").read_bytes() == one.read_bytes()
    assert store.load_all_mine()[1] == taken[0]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda record: replace(record, runs=(replace(RUN, simulated=True),)), "fake device"),
        (lambda record: replace(record, code_digest="sha256:" + "0" * 64), "code has changed"),
        (lambda record: replace(record, harness_version=records.HARNESS_VERSION + 1), "code has changed"),
        (lambda record: replace(record, runs=(replace(RUN, commit=None),)), "does not name in full"),
        (lambda record: replace(record, runs=(replace(RUN, commit="0000000"),)), "does not name in full"),
        (lambda record: replace(record, runs=(replace(RUN, commit=f"{RUN.commit}-modified"),)), "was modified"),
    ],
    ids=["simulated", "stale code", "stale harness", "no commit", "short commit", "modified commit"],
)
def test_what_must_not_be_published_is_refused_and_nothing_is_copied(
    tmp_path: Path, overlay: Path, published: Path, save: Save, change: Any, says: str
) -> None:
    save(a_record("ceilings"), tmp_path / "good")
    bad = save(change(a_record()), tmp_path / "bad")
    with pytest.raises(GpuguideError, match=rf"copy-size\.json cannot be published: .*{says}"):
        importing.import_records([tmp_path / "good", bad], published, publish=True)
    assert list(published.iterdir()) == []
    assert len(importing.import_records([tmp_path / "good", bad], overlay, publish=False)) == 2


def test_a_damaged_record_among_good_ones_is_named_and_nothing_is_copied(
    tmp_path: Path, overlay: Path, save: Save
) -> None:
    save(a_record(), tmp_path / "a")
    bad = save(a_record("matmul-size"), tmp_path / "a")
    bad.write_text(bad.read_text()[:-20])
    with pytest.raises(DamagedRecord, match=r"matmul-size\.json"):
        importing.import_records([tmp_path / "a"], overlay, publish=False)
    assert list(overlay.iterdir()) == []


def test_two_records_for_one_place_are_refused(tmp_path: Path, overlay: Path, save: Save) -> None:
    one, other = save(a_record(commit="one"), tmp_path / "a"), save(a_record(commit="other"), tmp_path / "b")
    with pytest.raises(GpuguideError) as caught:
        importing.import_records([tmp_path / "a", tmp_path / "b"], overlay, publish=False)
    assert str(one) in str(caught.value)
    assert str(other) in str(caught.value)
    assert list(overlay.iterdir()) == []


def with_sizes(record: Record, *sizes: int) -> Record:
    """Return a record with one good case for each size, all like its first."""
    return replace(record, cases=tuple(replace(record.cases[0], keys={"size": size}) for size in sizes))


def test_an_import_that_would_lose_measured_cases_is_refused(tmp_path: Path, overlay: Path, save: Save) -> None:
    save(with_sizes(a_record(), 1, 2, 3, 4), overlay)
    other = save(a_record("ceilings"), tmp_path / "fewer")
    fewer = save(with_sizes(a_record(), 3, 5), tmp_path / "fewer")
    with pytest.raises(GpuguideError) as caught:
        importing.import_records([tmp_path / "fewer"], overlay, publish=False)
    there = overlay / reference_gpu.slug() / "copy-size.json"
    why = f"{fewer} was not taken in: it lacks 3 of the 4 cases measured in {there}."
    assert str(caught.value) == f"{why} Add --replace to take it all the same."
    assert len(records.read(there).cases) == 4
    assert not (overlay / reference_gpu.slug() / "ceilings.json").exists()  # nothing is copied unless all may be
    importing.import_records([fewer, other], overlay, publish=False, replacing=True)
    assert len(records.read(there).cases) == 2


def test_an_import_that_adds_cases_or_measures_them_again_is_taken(tmp_path: Path, overlay: Path, save: Save) -> None:
    save(with_sizes(a_record(commit="first"), 1, 2), overlay)
    failed = replace(with_sizes(a_record(), 9).cases[0], status="failed", reason="why", measured={}, rates={})
    there = with_sizes(a_record(commit="first"), 1, 2)
    save(replace(there, cases=(*there.cases, replace(failed, correct="n/a"))), overlay)
    more = save(with_sizes(a_record(commit="second"), 1, 2, 3), tmp_path / "more")
    (taken,) = importing.import_records([more], overlay, publish=False)
    assert [run.commit for run in taken.runs] == ["second"]
    assert len(taken.cases) == 3


def read_aside(path: Path) -> Record:
    """Return a record from a file that was renamed."""
    return records.from_json(path.read_text(encoding="utf-8"))


def test_measurements_that_an_import_replaces_are_kept_under_another_name(
    tmp_path: Path, overlay: Path, save: Save
) -> None:
    first = with_sizes(a_record(commit="first"), 1, 2)
    there, before = save(first, overlay), first.cases[1]
    slower = replace(before, measured={"time": records.metric("s", [2 * t for t in before.measured["time"].samples])})
    more = save(replace(with_sizes(a_record(commit="second"), 1, 2, 3), path=None), tmp_path / "more")
    said: list[str] = []
    importing.import_records([more], overlay, publish=False, say=said.append)
    assert said == []  # it holds what was there, and more
    other = save(replace(first, cases=(first.cases[0], slower, with_sizes(first, 3).cases[0])), tmp_path / "other")
    importing.import_records([other], overlay, publish=False, say=said.append)
    kept = [path for path in there.parent.iterdir() if path != there]
    assert [read_aside(path).cases[1].measured for path in kept] == [before.measured]
    assert len(said) == 1
    assert str(kept[0]) in said[0]
    assert store.load_all_mine() == [records.read(there)]


def test_an_import_over_another_processors_record_is_refused(tmp_path: Path, overlay: Path, save: Save) -> None:
    """All processors share the folder ``cpu``."""
    mine, theirs = (
        replace(a_record(device="cpu"), runs=(replace(RUN, device_name=name),)) for name in ("Mine", "Theirs")
    )
    save(mine, overlay)
    other = save(theirs, tmp_path / "theirs")
    with pytest.raises(GpuguideError, match=r"is of another machine, Mine, and it is of Theirs\. Add --replace"):
        importing.import_records([other], overlay, publish=False)
    (taken,) = importing.import_records([other], overlay, publish=False, replacing=True)
    assert taken.device_name == "Theirs"
    assert read_aside(records.find_backup_path(replace(mine, path=taken.path))).device_name == "Mine"


def test_a_damaged_record_can_be_restored_by_an_import(tmp_path: Path, overlay: Path, save: Save) -> None:
    broken = save(a_record(), overlay)
    broken.write_text("{")
    (taken,) = importing.import_records([save(a_record(), tmp_path / "good")], overlay, publish=False)
    assert records.read(broken) == taken


def test_nothing_to_import_is_said(tmp_path: Path, overlay: Path) -> None:
    with pytest.raises(GpuguideError, match="no records in"):
        importing.import_records([overlay], overlay, publish=False)
    with pytest.raises(GpuguideError, match=r"no record at .*missing\.json"):
        importing.import_records([tmp_path / "missing.json"], overlay, publish=False)


def test_the_beginning_of_a_commit_is_published_in_full(tmp_path: Path, published: Path, save: Save) -> None:
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True, check=True
    )
    commit = head.stdout.strip()
    save(replace(a_record(), runs=(replace(RUN, commit=commit[:12]),)), tmp_path / "given")
    (taken,) = importing.import_records([tmp_path / "given"], published, publish=True)
    assert [run.commit for run in taken.runs] == [commit]


# --- what is published -----------------------------------------------------------------------------------


def test_every_benchmark_has_a_record_that_names_its_commit() -> None:
    """The code may have changed since: that stands in the way of a release, and ``make release-check`` names it."""
    found = store.load_all_published()
    modules, gpus = digest.benchmark_modules(), pages.gpus_of_topics()

    def is_spoken_of(record: Record) -> bool:
        """Whether a record is of the GPU that the pages on its benchmark's topic speak of."""
        topic = modules[record.benchmark].split(".")[2].replace("_", "-")
        return page_gpu.kind(record.device) == gpus.get(topic, reference_gpu.default_slug())

    assert {record.benchmark for record in found if is_spoken_of(record)} == modules.keys()
    refused = {record.path: refusal for record in found if (refusal := importing.unpublishable(record))}
    assert set(refused.values()) <= {"the code has changed since it was measured"}, refused


def test_published_times_have_the_samples_that_the_design_asks_for() -> None:
    for record in store.load_all_published():
        for case in record.cases:
            if "time" in case.measured:
                summary = case.measured["time"].summary
                wanted = benchmark.get(record.benchmark).samples or (20 if summary.median < 1 else 5)
                assert summary.n >= wanted, (record.path, case.keys, case.contender)


def test_published_records_survive_a_move(tmp_path: Path) -> None:
    copy = shutil.copytree(folders.published_folder(), tmp_path / "copy")
    for record in store.load_all_published():
        assert records.read(copy / record.device / f"{record.benchmark}.json").cases == record.cases


def test_published_records_name_no_path(repository: Path) -> None:
    for path in folders.published_folder().glob("*/*.json"):
        for run in json.loads(path.read_text())["runs"]:
            assert "/" not in run["command"], path
            assert str(repository) not in json.dumps(run), path
