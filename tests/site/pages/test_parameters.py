"""What papermill sets may be out of range: then the page says which parameter, and what it may be."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from gpuguide.site.pages import page_source

PAGES = sorted(Path(__file__).parents[3].glob("tutorials/[0-9]*.md"))
ANY_NUMBER = {"seed", "top_k"}
"""Parameters of which 0 is meant: the library says what else they may be"""


def parameters_and_next(page: Path) -> tuple[dict[str, object], str]:
    """Return the parameters of a page with their values, and the code of the cell after theirs."""
    cells = list(page_source.cells(page.read_text(encoding="utf-8")))
    place = next((place for place, cell in enumerate(cells) if "parameters" in cell.tags), None)
    if place is None:
        return {}, ""
    given: dict[str, object] = {}
    exec(cells[place].code, given)
    names = [target.id for node in ast.parse(cells[place].code).body for target in node.targets]  # type: ignore[attr-defined]
    return {name: given[name] for name in names}, cells[place + 1].code


def check(code: str, values: dict[str, object]) -> None:
    """Run the cell that checks them."""
    exec(code, dict(values))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_whole_number_out_of_range_is_named(page: Path) -> None:
    values, code = parameters_and_next(page)
    whole = {name: value for name, value in values.items() if isinstance(value, int) and name not in ANY_NUMBER}
    if whole:
        check(code, values)
    for name, value in whole.items():
        check(code, {**values, name: value // 2})
        for wrong in (0, -3):
            with pytest.raises(AssertionError, match=rf"\b{name}\b.* at least"):
                check(code, {**values, name: wrong})
