"""The check before a release, on repositories and sites with one fault each."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace as Thing

import pytest
import synthetic_records as synthetic
from small_site import FRONT, cell

from gpuguide import claims as ledger
from gpuguide.claims import pages
from gpuguide.errors import GpuguideError
from gpuguide.measure import folders, records, reference_gpu, store
from gpuguide.site.checks import release
from gpuguide.site.directives import status
from gpuguide.site.directives.status import PageStatus
from gpuguide.site.pages import skipped_cells

PAGE = FRONT.format(benchmarks="copy-size") + "\n# Page\n\n" + cell("x = 1")
REFERENCE_DEVICE = reference_gpu.slug
SHOW = "{measured}`copy-size/copy:bandwidth working_set=16384`"


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository of one page that ran, one fresh record and no claims."""
    (tmp_path / "tutorials").mkdir()
    (tmp_path / "docs").mkdir()
    (tmp_path / "index.md").write_text("# Home\n", encoding="utf-8")
    (tmp_path / "tutorials" / "00-page.md").write_text(PAGE, encoding="utf-8")
    monkeypatch.setattr(folders, "published_folder", lambda: tmp_path / "records")
    monkeypatch.setattr(reference_gpu, "slug", lambda: synthetic.PUBLISHED[0])
    monkeypatch.setattr(ledger, "check", list)
    publish(tmp_path, stale=False)
    write_status(tmp_path)
    return tmp_path


def publish(repository: Path, *, stale: bool, device: tuple[str, str] = synthetic.PUBLISHED) -> None:
    made = synthetic.record("copy-size", synthetic.cases_of("copy-size"), device, stale=stale)
    records.write(made, repository / "records" / made.device / "copy-size.json")


def write_status(repository: Path, **changes: object) -> None:
    page = PageStatus("tutorials/00-page", True, 1.5, "2026-01-02", "", (), ())
    content = status.contents([page], store.load_all_published())
    content["pages"][0].update(changes)
    (repository / status.FILE).write_text(json.dumps(content), encoding="utf-8")


def found(repository: Path) -> list[str]:
    return [str(blocker).removeprefix(f"{repository}/") for blocker in release.blockers(repository, repository)]


def edit(repository: Path, old: str, new: str) -> None:
    path = repository / "tutorials" / "00-page.md"
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


def test_nothing_in_the_way(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert found(repository) == []
    monkeypatch.chdir(repository)
    assert release.main([str(repository)]) == 0


def test_a_stale_record_and_each_number_read_from_it(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    publish(repository, stale=True)
    (repository / "docs" / "text.md").write_text(f"# Text\n\nIt is {SHOW}.\n", encoding="utf-8")
    record, number = found(repository)
    assert record.startswith("records/nvidia-h100-80gb-hbm3/copy-size.json: The record 'copy-size' of NVIDIA H100")
    assert "`gpuguide bench run copy-size --out DIR`" in record
    assert number.startswith(f"docs/text.md:3: {SHOW} is read from a stale record.")
    monkeypatch.chdir(repository)
    assert release.main([str(repository)]) == 1
    printed = capsys.readouterr()
    assert len(printed.out.splitlines()) == 2
    assert printed.err == "2 in the way of a release.\n"


def test_a_stale_record_of_another_gpu_blocks_nothing(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "all_pages", list)  # those of the project speak of other GPUs
    publish(repository, stale=True, device=synthetic.OTHER)
    assert found(repository) == []
    publish(repository, stale=True, device=(f"2x-{synthetic.PUBLISHED[0]}", synthetic.PUBLISHED[1]))
    publish(repository, stale=True, device=("cpu", "A processor"))
    assert [blocker.split("/")[1] for blocker in found(repository)] == ["2x-nvidia-h100-80gb-hbm3", "cpu"]
    monkeypatch.setattr(reference_gpu, "slug", lambda: synthetic.OTHER[0])
    assert [blocker.split("/")[1] for blocker in found(repository)] == ["cpu", synthetic.OTHER[0]]


def test_what_blocks_is_what_a_page_declares_on_its_own_gpu(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "repository", lambda: repository)
    monkeypatch.setattr("gpuguide.claims.reading.load", list)
    publish(repository, stale=True, device=synthetic.OTHER)
    assert found(repository) == []
    edit(repository, "benchmarks:", f"gpu: {synthetic.OTHER[0]}\n  benchmarks:")
    edit(repository, "# Page\n", f"# Page\n\nIt is {SHOW}.\n")
    setting = repository / "reference.toml"
    setting.write_text(f'device = "{synthetic.PUBLISHED[0]}"\n', encoding="utf-8")
    monkeypatch.setattr(reference_gpu, "settings_file", lambda: setting)
    monkeypatch.setattr(reference_gpu, "slug", REFERENCE_DEVICE)
    record, number = found(repository)
    assert record.startswith(f"records/{synthetic.OTHER[0]}/copy-size.json: The record 'copy-size' of NVIDIA H200")
    assert number.startswith("tutorials/00-page.md:")
    publish(repository, stale=False, device=synthetic.OTHER)
    publish(repository, stale=True)
    assert found(repository) == [], "no page speaks of the other one any more"


def test_a_failing_claim(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes = [
        Thing(ok=True, claim=Thing(id="good", place="claims/a.toml:2"), detail="3"),
        Thing(ok=False, claim=Thing(id="bad", place="claims/a.toml:9"), detail="There is no benchmark named 'gone'."),
    ]
    monkeypatch.setattr(ledger, "check", lambda: outcomes)
    (blocker,) = found(repository)
    assert blocker.startswith("claims/a.toml:9: The claim 'bad' fails: There is no benchmark named 'gone'. Correct")


@pytest.mark.parametrize("changes", [{"executed": False}, {"page": "tutorials/another"}])
def test_a_page_that_was_not_executed(repository: Path, changes: dict[str, object]) -> None:
    write_status(repository, **changes)
    (blocker,) = found(repository)
    assert blocker.startswith("tutorials/00-page.md:1: The page was not executed")
    edit(repository, "gpuguide:\n", "gpuguide:\n  not-run: it needs two GPUs\n")
    (blocker,) = found(repository)
    assert blocker.startswith("tutorials/00-page.md:3: The page was not executed")
    edit(repository, "two GPUs\n", "two GPUs (2026-01-31)\n")
    assert found(repository) == []


def test_a_cell_that_is_not_run(repository: Path) -> None:
    edit(repository, cell("x = 1"), cell("x = 1", "skip-execution"))
    assert found(repository) == []
    edit(repository, ":tags:", ":not-run: it needs two GPUs\n:tags:")
    (blocker,) = found(repository)
    assert blocker.startswith("tutorials/00-page.md:16: The cell is not run for a reason without a day")
    edit(repository, "two GPUs\n", "two GPUs (2026-01-31)\n")
    assert found(repository) == []


def test_pages_of_text_need_not_run(repository: Path) -> None:
    (repository / "docs" / "text.md").write_text("# Text\n\n```sh\nmake site\n```\n", encoding="utf-8")
    assert found(repository) == []


@pytest.mark.parametrize(
    ("reason", "dated"),
    [
        ("it needs two GPUs (2026-01-31)", True),
        ("it needs two GPUs", False),
        ("it needs two GPUs (2026-13-41)", False),
        ("(2026-01-31)", False),
        ("since 2026-01-31", False),
        ("", False),
    ],
)
def test_a_dated_reason_ends_with_a_day(reason: str, dated: bool) -> None:
    assert skipped_cells.is_dated(reason) == dated


@pytest.mark.parametrize("content", [None, "{", '{"pages": [{"page": "a"}]}', "[]"])
def test_a_site_that_is_not_built_is_named(
    repository: Path, content: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = repository / status.FILE
    path.unlink() if content is None else path.write_text(content, encoding="utf-8")
    with pytest.raises(GpuguideError, match=r"status\.json.*make site"):
        release.blockers(repository, repository)
    monkeypatch.chdir(repository)
    assert release.main([str(repository)]) == 1
    assert "make site" in capsys.readouterr().err


def test_the_make_target_runs_the_check(repository: Path) -> None:
    makefile = Path(__file__).parents[3] / "Makefile"
    assert "python -m gpuguide.site.checks.release _build/html" in makefile.read_text(encoding="utf-8")
