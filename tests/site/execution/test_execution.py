"""Pages run again when what they use has changed, and only then; what fails, fails every time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import synthetic_records as synthetic
from jupyter_cache import get_cache
from small_site import Project, cell, start

from gpuguide.errors import GpuguideError
from gpuguide.measure import folders, records, reference_gpu
from gpuguide.site.execution import declared_records, page_digests
from gpuguide.site.pages import page_source


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = start(tmp_path)
    made.page("index", "```{toctree}\n:glob:\n\n[a-z]*\n```", runs=False)
    return made


@pytest.mark.slow
def test_exactly_the_pages_that_use_a_change_run_again(project: Project) -> None:
    project.record("copy-size")
    project.record("ceilings")
    (project.library / "doubling.py").write_text("def double(number):\n    return 2 * number\n", encoding="utf-8")
    project.page("arithmetic", cell("from gpuguide import doubling\n\nprint(doubling.double(21))"))
    project.page("units", cell("from gpuguide import units\n\nprint(units.format_bytes(65536))"))
    reads = "from gpuguide.measure import store\n\nprint(len(store.load_published('copy-size').cases))"
    project.page("records", cell(reads) + "\nA copy moves {measured}`ceilings/copy:bandwidth`.", benchmarks="copy-size")

    first = project.build()
    assert first.status == 0, first.output
    assert first.executed == {"arithmetic", "units", "records"}
    assert "42" in (project.html / "arithmetic.html").read_text(encoding="utf-8")

    second = project.build()
    assert (second.status, second.executed, second.read) == (0, set(), set())

    project.edit("doubling.py", "2 * number", "4 * number")
    library = project.build()
    assert library.status == 0, library.output
    assert library.executed == {"arithmetic"}
    assert "84" in (project.html / "arithmetic.html").read_text(encoding="utf-8")

    project.edit("doubling.py", "4 * number", "2 * number")
    assert project.build().executed == set(), "the earlier outputs are still in the cache"

    project.edit("plotting/finishing.py", "handlelength=2.2", "handlelength=2.4")
    assert project.build().executed == set(), "no page here draws"

    project.record("copy-size", slower=1.5)
    record = project.build()
    assert record.executed == {"records"}

    project.record("ceilings", slower=1.5)
    prose = project.build()
    assert (prose.executed, prose.read) == (set(), {"records"}), "a number in prose is looked up again"

    project.edit("site/pages/tables.py", "from collections.abc", "import collections.abc\nfrom collections.abc")
    extension = project.build()
    assert (extension.executed, extension.read) == (set(), {"arithmetic", "index", "records", "units"})


@pytest.mark.slow
def test_a_record_edited_by_hand_stops_the_build(project: Project) -> None:
    path = project.record("copy-size")
    reads = "from gpuguide.measure import store\n\nprint(len(store.load_published('copy-size').cases))"
    project.page("page", cell(reads), benchmarks="copy-size")
    assert project.build().status == 0
    good = path.read_text(encoding="utf-8")
    path.write_text(good.replace('"seed":0', '"seed":1'), encoding="utf-8")
    for _ in range(2):
        damaged = project.build()
        assert damaged.status != 0
        assert "checksum" in damaged.output
        assert str(path) in damaged.output
    path.write_text(good, encoding="utf-8")
    mended = project.build()
    assert (mended.status, mended.executed) == (0, set())


@pytest.mark.slow
def test_a_failing_cell_fails_the_first_and_the_second_build(project: Project) -> None:
    """So does one that reads a record which its page does not declare, by a name that is put together."""
    project.record("copy-size")
    project.record("ceilings")
    project.page("broken", cell("1 / 0"))
    reads = "from gpuguide.measure import store\n\nstore.load_published('-'.join(['copy', 'size']))"
    project.page("greedy", cell(reads), benchmarks="ceilings")
    for _ in range(2):
        build = project.build()
        assert build.status != 0
        assert "ZeroDivisionError" in build.output
        assert "broken.md" in build.output
        assert "'copy-size' and does not declare it" in build.output


@pytest.mark.slow
def test_a_page_cannot_read_a_record_that_it_does_not_declare(project: Project) -> None:
    project.record("copy-size")
    project.record("ceilings")
    reads = "from gpuguide.measure import store\n\nstore.load_published('copy-size')"
    project.page("greedy", cell(reads), benchmarks="ceilings")
    build = project.build()
    assert build.status != 0
    line = project.line_of("greedy", "store.load_published")
    assert f"greedy.md:{line}: This page reads the record 'copy-size' and does not declare it." in build.output
    assert "Add it to the page's front matter: gpuguide: {benchmarks: [copy-size]}" in build.output


def test_undeclared_records_are_found_in_the_source() -> None:
    front = "---\ngpuguide:\n  benchmarks: [ceilings]\nkernelspec:\n  display_name: Python 3\n---\n"
    names = ["ceilings", "copy-size", "copy-size/copy:bandwidth", "copy-size/a.txt", "some copy-size", "ceilings/a:b"]
    codes = [*(f"read({name!r})" for name in names), "%magic\nread(", "read('copy-size')"]
    source = front + "".join(map(cell, codes))
    lines = source.splitlines()
    found = [(lines[line - 1], name) for line, name in declared_records.find_undeclared(source)]
    assert found == [
        ("read('copy-size')", "copy-size"),
        ("read('copy-size/copy:bandwidth')", "copy-size"),
        ("read('copy-size')", "copy-size"),
    ]


def test_a_page_that_declares_ceilings_is_one_of_all_records_that_they_are_taken_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / synthetic.OTHER[0]).mkdir()
    monkeypatch.setattr(folders, "record_folders", lambda: [tmp_path])
    pages = [page_source.PageSource(executed=True, benchmarks=(name,)) for name in ("ceilings", "copy-size")]
    before = [page_digests.page_digest(page) for page in pages]
    made = synthetic.record("copy-size", synthetic.cases_of("copy-size"), synthetic.OTHER)
    records.write(replace(made, benchmark="memory-hierarchy"), tmp_path / synthetic.OTHER[0] / "memory-hierarchy.json")
    changed = [page_digests.page_digest(page) != digest for page, digest in zip(pages, before, strict=True)]
    assert changed == [True, False]


@pytest.mark.slow
def test_two_pages_with_the_same_code_have_an_entry_each(project: Project) -> None:
    for name in ("one", "other"):
        project.page(name, cell("print(1)"))
    build = project.build()
    assert build.status == 0, build.output
    kept = get_cache(project.root / "_build" / ".jupyter_cache").list_cache_records()
    assert {Path(record.uri).stem for record in kept} == {"one", "other"}


def test_a_page_of_which_only_another_gpu_has_a_record_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "published_folder", lambda: tmp_path)
    monkeypatch.setattr(reference_gpu, "slug", lambda: "nvidia-b200")
    page = page_source.PageSource(executed=True, benchmarks=("copy-size",))
    for devices, says in (
        ([], "published on nvidia-b200. Measure"),
        ([synthetic.OTHER], "published on nvidia-b200, only on nvidia-h200."),
    ):
        for device in devices:
            synthetic.write_all(tmp_path, device)
        with pytest.raises(GpuguideError, match=says):
            declared_records.check_published(page)
    synthetic.write_all(tmp_path, ("2x-nvidia-b200", "NVIDIA B200"))
    declared_records.check_published(page)


def test_a_front_matter_that_no_one_reads_stops_the_build(project: Project) -> None:
    project.page("page", cell("1"))
    path = project.root / "page.md"
    path.write_text(path.read_text().replace("benchmarks: []", "benchmark: [x]"), encoding="utf-8")
    build = project.build()
    assert build.status != 0
    assert "page.md: The entry gpuguide of the front matter" in build.output
