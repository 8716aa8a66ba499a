"""A record is given today's digest where, and only where, the code that measured it is today's."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import synthetic_records as synthetic

from gpuguide import cli
from gpuguide.errors import GpuguideError
from gpuguide.measure import digest, records
from gpuguide.measure.digest import definitions, equivalent
from gpuguide.measure.digest.source import Tree
from gpuguide.measure.rebase import equivalences, rebase
from gpuguide.measure.records import Record

DECLARING = ("__init__.py", "ceilings.py", "timing.py")
"""The modules that declare the benchmarks of these tests; digests of all the others would only take longer"""


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A checkout whose only commit takes digests in another way; the library in its work tree is this one."""
    library = tmp_path / "checkout" / "src" / "gpuguide"
    left_out = shutil.ignore_patterns("__pycache__", "records", "site", "models", "*.toml")
    shutil.copytree(digest.PACKAGE_FOLDER, library, ignore=left_out)
    shutil.copytree(digest.PACKAGE_FOLDER / "measure", library / "measure", dirs_exist_ok=True)
    for path in (library / "benchmarks").iterdir():
        if path.name not in DECLARING:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    today = (library / "measure/digest/__init__.py").read_text(encoding="utf-8")
    assert today.count('"\\n".join(meanings)') == 1
    other = today.replace('"\\n".join(meanings)', '"; ".join(meanings)')
    (library / "measure/digest/__init__.py").write_text(other, encoding="utf-8")
    for command in ("init -q", "add -A", "-c user.name=A -c user.email=a@b.c commit -q -m one"):
        subprocess.run(["git", *command.split()], cwd=library.parents[1], check=True)
    (library / "measure/digest/__init__.py").write_text(today, encoding="utf-8")
    monkeypatch.setattr(digest, "PACKAGE_FOLDER", library)
    yield library
    forget()


def written(folder: Path, benchmark: str, code_digest: str) -> Record:
    """Write a record with a digest, as an earlier version of the library did."""
    made = synthetic.record(benchmark, synthetic.cases_of(benchmark), synthetic.OWN)
    return records.write(replace(made, code_digest=code_digest), folder / made.device / f"{benchmark}.json")


def before(benchmark: str) -> str:
    """Return the digest that a benchmark has by the way of taking it which the commit knows."""
    meanings = definitions.meanings(digest.find_reached_definitions(digest.tree(), benchmark))
    return "sha256:" + hashlib.sha256("; ".join(meanings).encode()).hexdigest()


def forget() -> None:
    """Forget what was read, as a new process would have."""
    for function in (Tree.module, definitions.render_definition, digest.declarations, digest.benchmark_modules):
        function.cache_clear()
    digest.benchmark_digest.cache_clear()


def test_what_becomes_of_records(checkout: Path, tmp_path: Path) -> None:
    same = written(tmp_path, "ceilings", before("ceilings"))
    changed = written(tmp_path, "matmul-size", before("matmul-size"))
    stale = written(tmp_path, "copy-size", "sha256:" + "0" * 64)
    fresh = written(tmp_path, "timing-mistakes", digest.benchmark_digest("timing-mistakes"))
    kept = {record.path: record.path.read_bytes() for record in (changed, stale, fresh) if record.path}
    declared = checkout / "benchmarks/ceilings.py"
    text = declared.read_text(encoding="utf-8")
    assert text.count("powers_of_two(256, 16384)") == 1, "the sizes of matmul-size"
    declared.write_text(text.replace("powers_of_two(256, 16384)", "powers_of_two(256, 8192)"), encoding="utf-8")
    forget()

    outcomes = {record.benchmark: outcome for record, outcome in rebase([same, changed, stale, fresh], "HEAD")}

    assert outcomes == {
        "ceilings": "rebased",
        "matmul-size": "changed since",
        "copy-size": "stale before",
        "timing-mistakes": "fresh",
    }
    assert same.path is not None
    now = records.read(same.path)
    assert not now.stale
    assert replace(now, code_digest="", path=None) == replace(same, code_digest="", path=None)
    assert {path: path.read_bytes() for path in kept} == kept


SIZES = ("powers_of_two(256, 16384)", "powers_of_two(256, 8192)")
"""Those of matmul-size, and others"""


def edit(library: Path, old: str, new: str) -> None:
    """Change the declarations of the ceilings' benchmarks, as a contributor would."""
    declared = library / "benchmarks/ceilings.py"
    text = declared.read_text(encoding="utf-8")
    assert text.count(old) == 1, old
    declared.write_text(text.replace(old, new), encoding="utf-8")
    forget()


def test_a_change_that_measures_the_same(checkout: Path, tmp_path: Path) -> None:
    """Two changes in a row: the rows lead from the record's digest to today's, and a third change is none of theirs."""
    folder = checkout / "records"
    folder.mkdir()
    record = written(tmp_path, "matmul-size", digest.benchmark_digest("matmul-size"))
    other = written(tmp_path, "ceilings", digest.benchmark_digest("ceilings"))
    reason = "No case of the record is one of those that went."
    for old, new in (SIZES, (SIZES[1], "powers_of_two(256, 4096)")):
        edit(checkout, old, new)
        assert (record.stale, other.stale) == (True, False)
        (row,) = equivalences([record, other], "HEAD", reason)
        assert (row.benchmark, row.reason, len(row.commit)) == ("matmul-size", reason, 40)
        equivalent.write(folder, [*equivalent.rows(folder), row])
        assert not record.stale
        for command in ("add -A", "-c user.name=A -c user.email=a@b.c commit -q -m next"):
            subprocess.run(["git", *command.split()], cwd=checkout.parents[1], check=True)
    first, second = equivalent.rows(folder)
    assert (first.old, first.new, second.new) == (
        record.code_digest,
        second.old,
        digest.benchmark_digest("matmul-size"),
    )
    edit(checkout, "powers_of_two(256, 4096)", "powers_of_two(256, 2048)")
    assert record.stale


def test_a_change_that_needs_no_row_gets_none(checkout: Path, tmp_path: Path) -> None:
    record = written(tmp_path, "matmul-size", digest.benchmark_digest("matmul-size"))
    stale = written(tmp_path, "copy-size", "sha256:" + "0" * 64)
    assert equivalences([record, stale], "HEAD", "Nothing changed.") == []
    edit(checkout, *SIZES)
    with pytest.raises(GpuguideError, match="copy-size"):
        equivalences([record, stale], "HEAD", "Fewer sizes.", ["copy-size", "matmul-size"])


def test_a_commit_that_git_does_not_know(checkout: Path) -> None:
    with pytest.raises(GpuguideError, match="Git cannot give the library of nothing"):
        list(rebase([], "nothing"))


def test_a_commit_whose_library_does_not_run(checkout: Path) -> None:
    (checkout / "errors.py").write_text("import nothing_of_this_name\n", encoding="utf-8")
    for command in ("add -A", "-c user.name=A -c user.email=a@b.c commit -q -m two"):
        subprocess.run(["git", *command.split()], cwd=checkout.parents[1], check=True)
    with pytest.raises(GpuguideError, match="nothing_of_this_name"):
        list(rebase([], "HEAD"))


def test_the_command_says_what_became_of_each(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GPUGUIDE_RECORDS", str(tmp_path))
    monkeypatch.setattr("sys.argv", ["gpuguide", "records", "rebase", "HEAD", "--mine"])
    written(tmp_path, "ceilings", before("ceilings"))
    with pytest.raises(SystemExit) as done:
        cli.main()
    assert not done.value.code
    written(tmp_path, "copy-size", "sha256:" + "0" * 64)
    with pytest.raises(SystemExit) as done:
        cli.main()
    assert done.value.code == 1
    said = capsys.readouterr().out.splitlines()
    device = synthetic.OWN[0]
    assert said == [f"{device}/ceilings: rebased", f"{device}/ceilings: fresh", f"{device}/copy-size: stale before"]
