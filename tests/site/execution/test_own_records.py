"""A reader's own records reach the cells of pages, however ``GPUGUIDE_RECORDS`` names their folder."""

from __future__ import annotations

import asyncio
from pathlib import Path

import nbformat
import pytest
import synthetic_records as synthetic
from bs4 import BeautifulSoup
from small_site import Project, cell, start

from gpuguide.measure import records
from gpuguide.site.execution import side_by_side

FIGURE = """
from gpuguide import plotting
from gpuguide.measure import records, store

print(len(store.load_mine("copy-size")), "of my own")


def draw(figure, theme):
    plotting.curves(figure.subplots(), "copy-size", x="working_set", metric="bandwidth", contenders=["copy"])


plotting.show(draw, alt="A curve.", caption="A copy.")
"""
OWN = "NVIDIA GeForce RTX 4090"


def shown(project: Project) -> dict[str, str]:
    """Return what the page says of the reader's own records: in a cell, under the figure, and in the table."""
    html = BeautifulSoup((project.html / "page.html").read_text(encoding="utf-8"), "html.parser")
    parts = {"cell": ".cell_output pre", "figure": "figure", "table": "p.gg-yours"}
    return {name: " ".join(part.get_text() for part in html.select(where)) for name, where in parts.items()}


@pytest.mark.slow
def test_a_relative_and_an_absolute_name_show_the_same_records(tmp_path: Path) -> None:
    project = start(tmp_path)
    project.record("copy-size")
    project.own_record("copy-size")
    project.page("page", cell(FIGURE) + "\n```{your-records}\n```", benchmarks="copy-size")
    project.page("index", "```{toctree}\npage\n```", runs=False)
    seen = []
    for folder, runs in (("", True), ("own", True), (str(project.root / "own"), False), ("", False), ("own", False)):
        build = project.build(own_folder=folder)
        assert build.status == 0, build.output
        assert (build.executed == {"page"}) == runs, "the outputs with and without own records are kept apart"
        seen.append(shown(project))
    assert seen[0] == seen[3]
    assert seen[0]["cell"] == "0 of my own\n"
    assert OWN not in str(seen[0])
    assert seen[1] == seen[2] == seen[4]
    assert seen[1]["cell"] == "1 of my own\n"
    assert all(OWN in seen[1][part] for part in ("figure", "table"))

    for place in (project.root / "absent", project.root / "index.md"):
        build = project.build(own_folder=place.name)
        assert build.status != 0
        assert "GPUGUIDE_RECORDS names " in build.output
        assert str(place) in build.output


def test_a_kernel_finds_the_folder_that_a_relative_name_means(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = synthetic.record("copy-size", synthetic.cases_of("copy-size"), synthetic.OWN)
    records.write(made, tmp_path / "mine" / made.device / "copy-size.json")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GPUGUIDE_RECORDS", "mine")
    read = nbformat.v4.new_code_cell("from gpuguide.measure import store\nprint(len(store.load_mine('copy-size')))")
    notebook = nbformat.v4.new_notebook(cells=[read])
    job = side_by_side.Job("page", "page.md", notebook, 60)
    fault, _ = asyncio.run(side_by_side.run(notebook, job))
    assert fault is None
    assert notebook.cells[0].outputs[0]["text"] == "1\n"
