"""The versions of other packages are part of what a page's outputs rest on."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

from gpuguide.measure import digest
from gpuguide.site.execution import installed, page_digests
from gpuguide.site.pages import page_source


def page(code: str) -> page_source.PageSource:
    return page_source.read(
        "---\nkernelspec:\n  display_name: Python 3\n  name: python3\n---\n\n# Page\n\n"
        f"```{{code-cell}} ipython3\n{code}\n```\n"
    )


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Packages that are made up: ``drawing`` brings the module ``draw`` and needs ``Ink_Lib``; ``other`` is alone."""
    for name, version, more in (
        ("drawing", "1.0", "Requires-Dist: Ink.Lib (>=2)\nRequires-Dist: other>=1; extra == 'all'\n"),
        ("ink_lib", "2.0", ""),
        ("other", "3.0", ""),
    ):
        write(tmp_path, name, version, more)
    (tmp_path / "drawing-1.0.dist-info" / "top_level.txt").write_text("draw\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    forget()
    yield tmp_path
    forget()


def write(folder: Path, name: str, version: str, more: str = "") -> None:
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{more}")
    forget()


def forget() -> None:
    installed._get_distribution.cache_clear()
    installed._map_imports_to_packages.cache_clear()


def test_a_page_runs_again_with_another_version_of_what_it_imports_and_of_what_that_needs(packages: Path) -> None:
    draws = page("import draw.lines\nimport json")
    before = page_digests.page_digest(draws)
    assert installed.versions(draws.code, []).keys() == {"python", "drawing", "ink-lib"}
    assert page_digests.page_digest(draws) == before
    write(packages, "other", "3.1")
    assert page_digests.page_digest(draws) == before
    write(packages, "ink_lib", "2.1")
    assert page_digests.page_digest(draws) != before


def test_packages_that_modules_of_the_library_import_count(packages: Path) -> None:
    source = page("from gpuguide import logits")
    found = installed.versions(source.code, digest.transitive(digest.imports_of(source.code)))
    assert found["torch"] == metadata.version("torch")
    assert "gpuguide" not in found
    assert "drawing" not in found


def test_code_that_is_no_python_and_packages_that_are_missing_change_nothing() -> None:
    assert page_digests.page_digest(page("import (")) == page_digests.page_digest(page("1 +"))
    assert installed.versions("import surely_no_such_package\nfrom . import nothing", []).keys() == {"python"}
