"""The tutorial that one copies: copied, it builds and runs as any other, and no note to the author reaches a reader."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from small_site import start

from gpuguide.measure import folders
from gpuguide.site.checks import page_lint

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
def test_a_copy_of_the_template_is_a_tutorial(tmp_path: Path) -> None:
    project = start(tmp_path)
    shutil.copytree(folders.published_folder(), project.library / "records", dirs_exist_ok=True)
    project.page("index", "```{toctree}\ntutorials/07-copies\n```", runs=False)
    page = project.root / "tutorials" / "07-copies.md"
    page.parent.mkdir()
    shutil.copy(ROOT / "tutorials" / "template.md", page)
    assert page_lint.findings([page]) == []
    build = project.build()
    assert build.status == 0, build.output
    assert build.executed == {"07-copies"}
    html = (project.html / "tutorials" / "07-copies.html").read_text(encoding="utf-8")
    notebook = json.loads((project.html / "notebooks" / "07-copies.ipynb").read_text(encoding="utf-8"))
    text = "\n".join("".join(cell["source"]) for cell in notebook["cells"])
    notes = re.findall(r"^% (.{20})", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(notes) > 8
    for note in notes:
        assert note not in html
        assert note not in text
    assert len(re.findall(r'<figure[^>]*class="[^"]*gg-figure', html)) == 2, "a drawing and a figure"
    assert "No sentence" not in text
    printed = [output.get("text") for cell in notebook["cells"] for output in cell.get("outputs", [])]
    assert any("for 1 GiB" in "".join(lines or []) for lines in printed)


def test_the_site_leaves_the_template_out() -> None:
    site = ROOT / "_build" / "html"
    if not site.is_dir():
        pytest.skip("the site is not built; run `make site`, or `make test`, which does")
    assert not list(site.rglob("template*"))
