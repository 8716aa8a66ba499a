"""A table of results: text in a script, Markdown in a notebook, its cells and its alignment on the site."""

from __future__ import annotations

import subprocess
import sys

import pandas
import pytest

from gpuguide.errors import GpuguideError
from gpuguide.plotting import show_table
from gpuguide.plotting.tables import TABLE_MIME, Table

MADE = Table(("format", "rate", "share"), (("bf16 | x", "710 TFLOP/s", "72 %"), ("fp32", "52.1 TFLOP/s", "")))


def test_text_and_markdown_are_those_of_a_well_known_library() -> None:
    """Pandas writes both with tabulate; padding aside they agree."""
    frame = pandas.DataFrame(MADE.rows, columns=list(MADE.header))
    theirs = frame.to_markdown(index=False, colalign=("left", "right", "right"), disable_numparse=True)
    cells = [
        [cell.strip() for cell in line.replace(r"\|", "¦").strip("|").split("|")]
        for line in MADE.markdown().split("\n")
    ]
    expected = [
        [cell.strip() for cell in line.replace("bf16 |", "bf16 ¦").strip("|").split("|")] for line in theirs.split("\n")
    ]
    assert [cells[0], *cells[2:]] == [expected[0], *expected[2:]]
    assert [cell.endswith(":") for cell in cells[1]] == [cell.endswith(":") for cell in expected[1]]
    lines = str(MADE).splitlines()
    assert lines[0] == "format            rate  share"
    assert lines[2] == "bf16 | x   710 TFLOP/s   72 %"
    assert lines[3] == "fp32      52.1 TFLOP/s"


def test_a_column_of_numbers_is_aligned_to_the_right() -> None:
    assert MADE.numeric == (False, True, True)
    assert Table(("a", "b"), (("x", ""), ("y", ""))).numeric == (False, False)


def test_what_only_the_site_reads_is_made_for_the_site_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPUGUIDE_SITE_BUILD", raising=False)
    assert set(MADE._repr_mimebundle_()) == {"text/markdown", "text/plain"}
    monkeypatch.setenv("GPUGUIDE_SITE_BUILD", "1")
    assert MADE._repr_mimebundle_()[TABLE_MIME]["numeric"] == (False, True, True)


def test_a_script_prints_the_table() -> None:
    code = "from gpuguide.plotting import show_table; show_table(['n', 'x'], [['one', 1.23456], ['two', None]])"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed == "n       x\n---  ----\none  1.23\ntwo\n"


@pytest.mark.parametrize(
    ("rows", "said"),
    [([], "has no row"), ([["a"]], "1 cells and the header 2"), ([["x", 1.0], ["", 2.0]], "without a name")],
)
def test_a_table_that_does_not_fit_is_refused(rows: list[list[str]], said: str) -> None:
    with pytest.raises(GpuguideError, match=said):
        show_table(["a", "b"], rows)


def test_a_column_has_a_name() -> None:
    with pytest.raises(GpuguideError, match="without a name"):
        show_table(["", "b"], [["x", 1.0]])
