"""What is wrong on a page stops the build, every time, with file, line and remedy.

Other tests hold the rest of this: roles (``test_numbers``), undeclared records (``test_execution``), claims
(``test_truth_pages``), names of notebooks (``test_download_parts``), stale numbers (``test_release``), and what the
lint finds before any build (``test_page_lint``).
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from small_site import Project, cell, start


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return start(tmp_path)


def reported(project: Project, name: str) -> list[str]:
    """Build twice, and return what the second build says of a page, line by line."""
    for _ in range(2):
        build = project.build()
        assert build.status != 0
    return [line for line in build.output.splitlines() if re.search(rf"{name}\.md:\d+: ", line)]


@pytest.mark.slow
def test_a_declared_record_that_is_not_there(project: Project) -> None:
    project.page("index", cell("1"), benchmarks="copy-size")
    (line, *_) = reported(project, "index")
    assert f"index.md:{project.line_of('index', 'benchmarks:')}: The page declares 'copy-size', of which no" in line
    assert "gpuguide bench run copy-size" in line
    assert "or remove it from the front matter" in line
    project.record("copy-size")
    assert project.build().status == 0


@pytest.mark.slow
def test_a_declared_benchmark_that_does_not_exist(project: Project) -> None:
    project.page("index", cell("1"), benchmarks="coppy-size")
    (line, *_) = reported(project, "index")
    assert f"index.md:{project.line_of('index', 'benchmarks:')}: There is no benchmark named 'coppy-size'." in line
    assert "Did you mean copy-size?" in line


@pytest.mark.slow
def test_a_record_of_a_device_that_has_none(project: Project) -> None:
    project.record("copy-size")
    code = "from gpuguide.measure import store\n\nstore.load_published('copy-size', device='nvidia-h200')"
    project.page("index", cell("x = 1") + "\n" + cell(code), benchmarks="copy-size")
    line, *_ = reported(project, "index")
    assert f"index.md:{project.line_of('index', 'device=')}: " in line
    assert "nvidia-h200" in line


@pytest.mark.slow
def test_a_label_that_stands_twice(project: Project) -> None:
    project.page("index", "(where)=\n## One\n\n```{toctree}\nother\n```", runs=False)
    project.page("other", "(where)=\n## Two", runs=False)
    build = project.build()
    assert build.status != 0
    line = project.line_of("other", "## Two")
    assert re.search(rf"other\.md:{line}: WARNING: duplicate label where, other instance in .*index\.md", build.output)


@pytest.mark.slow
def test_an_image_without_a_text(project: Project) -> None:
    project.page("index", "```{toctree}\ntutorials/00-page\n```", runs=False)
    project.page("tutorials/00-page", "You will look.\n\n![](dot.png)\n\n" + cell("1"))
    (project.root / "tutorials" / "dot.png").write_bytes(b"\x89PNG")
    line, *_ = reported(project, "00-page")
    assert f"00-page.md:{project.line_of('tutorials/00-page', '![]')}: The image" in line
    assert "has no alternative text. Say in its brackets what one sees." in line
