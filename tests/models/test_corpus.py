from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from gpuguide.errors import GpuguideError
from gpuguide.models import corpus


def test_library_has_what_everyone_imports_and_no_tests() -> None:
    names = {source.name for source in corpus.standard_library()}
    assert {"json/decoder.py", "argparse.py", "collections/__init__.py"} <= names
    assert not [
        name for name in names if "test" in Path(name).parts or "site-packages" in name or "sysconfigdata" in name
    ]
    assert names == {source.name for source in corpus.standard_library()}


def test_text_is_read_as_the_file_declares(tmp_path: Path) -> None:
    (tmp_path / "latin.py").write_bytes("# -*- coding: latin-1 -*-\nname = 'é'\n".encode("latin-1"))
    (tmp_path / "broken.py").write_bytes(b"name = '\xe9'\n")
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "case.py").write_text("")
    (source,) = corpus.standard_library(tmp_path)
    assert source.name == "latin.py"
    assert "é" in source.text


def test_no_library(tmp_path: Path) -> None:
    with pytest.raises(GpuguideError, match="There are no Python files in"):
        corpus.standard_library(tmp_path)


def test_split_goes_by_name_and_keeps_everything() -> None:
    sources = [corpus.CorpusFile(f"m{index}.py", "x") for index in range(2000)]
    training, validation = corpus.split(sources)
    assert len(training) + len(validation) == 2000
    assert 60 <= len(validation) <= 140
    assert corpus.split(list(reversed(sources)))[1] == list(reversed(validation))
    large = [corpus.CorpusFile(source.name, "x" * 200_001) for source in validation]
    assert corpus.split(large) == (large, [])


def test_digest_tells_files_apart() -> None:
    one, other = corpus.CorpusFile("a", "bc"), corpus.CorpusFile("ab", "c")
    assert len({corpus.digest(part) for part in ([one], [other], [one, other], [other, one], [])}) == 5


def test_held_out_text_is_python_and_about_twenty_kilobytes() -> None:
    text = corpus.load_held_out()
    assert 18_000 <= len(text.encode()) <= 26_000
    programs = text.split("# program: ")[1:]
    assert len(programs) >= 10
    for program in programs:
        tree = ast.parse("# " + program)
        assert ast.get_docstring(tree)


def test_held_out_text_is_not_in_the_corpus() -> None:
    """No line of it that says something stands in the library word for word more often than chance explains."""
    lines = {line.strip() for line in corpus.load_held_out().splitlines() if len(line.strip()) >= 40}
    library = "\n".join(source.text for source in corpus.standard_library())
    known = [line for line in lines if line in library]
    assert len(known) <= 0.01 * len(lines), known


def test_published_records_name_their_corpus() -> None:
    from gpuguide import models

    described = [models.training_record(name)["corpus"] for name in models.PACKAGED]
    assert described[0] == described[1]
    assert described[0]["interpreter"].startswith("CPython 3.")
    assert len(described[0]["sha256"]) == 64
    assert json.dumps(described[0]).count("/") == 0  # no path of the machine
