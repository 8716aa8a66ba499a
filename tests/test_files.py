"""A file or a folder is replaced as a whole, or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuguide.files import replace_atomically, replace_folder_atomically


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


@pytest.mark.parametrize("marker", [None, "config.json"])
def test_a_folder_is_there_once_all_its_files_are(tmp_path: Path, marker: str | None) -> None:
    folder = tmp_path / "above" / "folder"
    with replace_folder_atomically(folder, marker=marker) as temporary:
        (temporary / "config.json").write_text("new")
        assert not folder.exists()
    assert [path.name for path in folder.iterdir()] == ["config.json"]
    assert list(folder.parent.iterdir()) == [folder]


@pytest.mark.parametrize("marker", [None, "config.json"])
def test_an_error_leaves_the_folder_that_was_there(tmp_path: Path, marker: str | None) -> None:
    (tmp_path / "config.json").write_text("old")
    with pytest.raises(FileNotFoundError), replace_folder_atomically(tmp_path, marker=marker) as temporary:
        (temporary / "missing" / "config.json").write_text("new")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]
    assert not [path for path in tmp_path.parent.iterdir() if path.name.startswith(f".{tmp_path.name}-")]


@pytest.mark.parametrize("marker", [None, "config.json"])
def test_a_folder_is_replaced(tmp_path: Path, marker: str | None) -> None:
    """Without a marker its other files go; with one they stay."""
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in ("config.json", "notes.txt"):
        (folder / name).write_text("old")
    with replace_folder_atomically(folder, marker=marker) as temporary:
        for name in ("config.json", "weights"):
            (temporary / name).write_text("new")
    contents = {path.name: path.read_text() for path in folder.iterdir()}
    assert contents == {"config.json": "new", "weights": "new", **({"notes.txt": "old"} if marker else {})}
    assert list(tmp_path.iterdir()) == [folder]


def test_the_marker_is_gone_while_files_are_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text("old")
    seen = []
    move = os.replace
    monkeypatch.setattr(os, "replace", lambda *paths: (seen.append((tmp_path / "config.json").exists()), move(*paths)))
    with replace_folder_atomically(tmp_path, marker="config.json") as temporary:
        for name in ("config.json", "weights"):
            (temporary / name).write_text("new")
    assert seen == [False, False]
    assert (tmp_path / "config.json").read_text() == "new"


def test_a_folder_that_cannot_be_renamed_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "weights").write_text("old")
    rename = Path.rename

    def refuse(path: Path, target: Path) -> Path:
        if path.suffix == ".tmp":
            raise OSError("busy")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(OSError, match="busy"), replace_folder_atomically(folder) as temporary:
        (temporary / "weights").write_text("new")
    assert [path.read_text() for path in folder.iterdir()] == ["old"]
    assert list(tmp_path.iterdir()) == [folder]
