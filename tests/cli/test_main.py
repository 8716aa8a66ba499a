from __future__ import annotations

from pathlib import Path

import pytest

from gpuguide import __main__, cli
from gpuguide.measure import digest, folders
from gpuguide.measure.digest import remembered


def test_a_command_takes_over_what_an_earlier_one_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (source := tmp_path / "library").mkdir()
    (module := source / "module.py").write_text("a = 1\n")
    found: list[int] = []
    monkeypatch.setattr(folders, "cache_folder", lambda: tmp_path / "cache")
    monkeypatch.setattr(digest, "PACKAGE_FOLDER", source)
    monkeypatch.setattr(remembered, "_kept", None)
    monkeypatch.setattr(cli, "main", lambda: remembered.answer("a question", lambda: found.append(1)))
    __main__.main()
    __main__.main()
    assert len(found) == 1
    module.write_text("a = 10\n")
    __main__.main()
    assert len(found) == 2, "the source has changed"
    (file,) = (tmp_path / "cache").iterdir()
    file.write_text("{")
    __main__.main()
    assert len(found) == 3, "the file is damaged"
    monkeypatch.setattr(folders, "cache_folder", lambda: file)  # no folder
    __main__.main()
    assert len(found) == 4
