"""Processes of their own import what they run from beside the tests."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import small_text


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a text."""
    small_text.write_text(tmp_path / "text.txt")
    return tmp_path
