"""What is remembered of the library's source between processes, and when it is forgotten."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuguide.measure.digest import remembered


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(remembered, "_kept", None)
    (tmp_path / "library").mkdir()
    (tmp_path / "library" / "one.py").write_text("A = 1\n", encoding="utf-8")
    return tmp_path / "library"


def asked(source: Path, found: str) -> str:
    """What a process answers that would find ``found``."""
    remembered.keep_in(source.parent / "answers" / "source.json", source)
    answer = remembered.answer("digest", lambda: found)
    remembered.save()
    return str(answer)


def test_an_answer_holds_until_a_file_changes(source: Path) -> None:
    assert asked(source, "first") == "first"
    assert asked(source, "second") == "first"
    (source / "one.py").write_text("A = 22\n", encoding="utf-8")
    assert asked(source, "third") == "third"
    (source / "two.py").write_text("", encoding="utf-8")
    assert asked(source, "fourth") == "fourth"


def test_a_damaged_file_is_as_none(source: Path) -> None:
    asked(source, "first")
    (source.parent / "answers" / "source.json").write_text('{"source": [', encoding="utf-8")
    assert asked(source, "second") == "second"


def test_without_a_file_nothing_is_remembered(source: Path) -> None:
    assert remembered.answer("digest", lambda: 1) == 1
    assert remembered.answer("digest", lambda: 2) == 2
