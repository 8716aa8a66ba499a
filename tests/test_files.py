"""A file is replaced as a whole, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuguide.files import replace_atomically


def test_a_file_is_there_once_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "file.txt"
    with replace_atomically(path) as temporary:
        temporary.write_text("new")
        assert not path.exists()
    assert path.read_text() == "new"
    assert list(path.parent.iterdir()) == [path]


def test_an_error_leaves_the_file_that_was_there(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    path.write_text("old")
    with pytest.raises(FileNotFoundError), replace_atomically(path) as temporary:
        temporary.rename(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").unlink()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
