"""The form of a page on a small site: folds, results, what stands apart, and what of it the downloads show."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import nbformat
import pytest
from bs4 import BeautifulSoup, Tag
from small_site import Project, cell, start

from gpuguide.costs import roofline
from gpuguide.errors import GpuguideError
from gpuguide.site.pages import library_code

DRAW = """from gpuguide import plotting

plotting.show(lambda figure, theme: figure.subplots().plot([1, 2]), alt="A line that rises.", caption="A line.")"""
TABLE = """from gpuguide.plotting import show_table

show_table(["format", "rate"], [["bf16", "710 TFLOP/s"], ["fp32", "52 TFLOP/s"]], caption="By format.")"""
BODY = f"""
You will look at folds.

```{{cost-card}}
```

## In short

It is {{given}}`so`.

{cell("print(1 + 1)", "snippet")}

## Figures

{cell("first = 1", "hide-input")}

{cell("second = 2", "hide-cell")}

{cell(DRAW, "hide-input")}

{cell(TABLE, "hide-input")}

{cell("print(first + second)", "hide-input")}

{cell("third = 3", "hide-input")}

Text between.

```{{code-cell}} ipython3
:tags: [hide-input]
:fold: Where the third comes from

third = 4
```

{cell("print('long')", "hide-output")}

A cell that prints nothing has nothing to fold.

{cell("fourth = 4", "hide-output")}

:::{{takeaway}}
Folds say **what** is inside.
:::

:::{{question}}
What does `third` hold?

The number {{given}}`four`.
:::

```{{library-code}} gpuguide.costs.roofline.ridge
```

## Exercises

**1. One.** Add.

{cell("print(first)", "hide-cell")}
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Project:
    made = start(tmp_path_factory.mktemp("site"))
    made.page("index", "```{toctree}\ntutorials/00-folds\n```", runs=False)
    made.page("tutorials/00-folds", BODY)
    build = made.build()
    assert build.status == 0, build.output
    return made


@pytest.fixture
def page(site: Project) -> BeautifulSoup:
    return BeautifulSoup((site.html / "tutorials" / "00-folds.html").read_text(encoding="utf-8"), "html.parser")


def code_in(fold: Tag) -> list[str]:
    return [block.get_text().strip() for block in fold.select("div.highlight pre")]


@pytest.mark.slow
def test_neighbouring_folds_are_one_and_say_what_is_inside(page: BeautifulSoup) -> None:
    folds = page.select("article details.gg-code-fold")
    assert [fold.summary.get_text() for fold in folds if fold.summary] == [
        "Code for this figure",
        "Code for this table",
        "Code for this result",
        "Code for what follows",
        "Where the third comes from",
        "What this cell prints",
        "Show the answer",
    ]
    assert code_in(folds[0])[:2] == ["first = 1", "second = 2"]
    assert len(code_in(folds[0])) == 3
    assert "aria-label" not in str(folds)
    assert "Toggle" not in str(page)
    assert "Show code cell" not in str(page)


@pytest.mark.slow
def test_no_fold_stands_beside_a_fold(page: BeautifulSoup) -> None:
    assert page.select("details")
    for fold in page.select("details"):
        follower = fold.find_next_sibling() or (fold.parent and fold.parent.find_next_sibling())
        assert not isinstance(follower, Tag) or follower.name != "details"


@pytest.mark.slow
def test_what_a_fold_hides_and_what_it_leaves(page: BeautifulSoup) -> None:
    figure = page.select_one("figure.gg-figure")
    assert figure is not None
    assert figure.find_parent("details") is None
    folds = {fold.summary.get_text(): fold for fold in page.select("details") if fold.summary}
    assert "long" in folds["What this cell prints"].get_text()
    assert "print(" not in folds["What this cell prints"].get_text()
    assert "print(first)" in folds["Show the answer"].get_text() or "four" in folds["Show the answer"].get_text()


@pytest.mark.slow
def test_a_cell_that_prints_nothing_shows_its_code_though_its_output_is_hidden(page: BeautifulSoup) -> None:
    (code,) = (block for block in page.select("div.highlight pre") if block.get_text().strip() == "fourth = 4")
    assert code.find_parent("details") is None


@pytest.mark.slow
def test_results_are_a_table_whose_first_column_names_the_rows(page: BeautifulSoup) -> None:
    table = page.select_one("table.gg-results")
    assert table is not None
    assert table.caption is not None
    assert table.caption.get_text().startswith("By format.")
    assert [head.get_text().strip() for head in table.select("thead th")] == ["format", "rate"]
    assert [head.get_text().strip() for head in table.select("tbody th")] == ["bf16", "fp32"]
    assert [cell.get_text().strip() for cell in table.select("tbody td.gg-right")] == ["710 TFLOP/s", "52 TFLOP/s"]


@pytest.mark.slow
def test_a_takeaway_and_a_question_stand_apart(page: BeautifulSoup) -> None:
    takeaway, question = page.select_one(".gg-takeaway"), page.select_one(".gg-question")
    assert takeaway is not None
    assert takeaway.get_text().strip() == "Takeaway. Folds say what is inside."
    assert question is not None
    assert question.p is not None
    assert question.p.get_text() == "Question. What does third hold?"
    assert question.summary is not None
    assert question.summary.get_text() == "Show the answer"


@pytest.mark.slow
def test_a_function_of_the_library_stands_on_the_page_in_whole(site: Project, page: BeautifulSoup) -> None:
    source = inspect.getsource(roofline.ridge).strip()
    assert source in [block.get_text().strip() for block in page.select("div.highlight pre")]
    notebook = (site.html / "notebooks" / "00-folds.ipynb").read_text(encoding="utf-8")
    assert json.dumps(f"```python\n{source}\n```")[1:-1] in "".join(
        json.dumps("".join(each["source"]))[1:-1] for each in json.loads(notebook)["cells"]
    )


def test_library_code_is_found_by_the_face_of_its_package_and_with_its_decorators() -> None:
    path, code = library_code.source_of("gpuguide.logits.fused_softmax")
    assert path.parent.name == "logits"
    assert "def fused_softmax(" in code
    _, code = library_code.source_of("gpuguide.costs.memory.MemoryPrediction")
    assert code.startswith("@dataclass")
    for wrong in ("gpuguide.logits.softmx", "gpuguide.logits", "torch.mm"):
        with pytest.raises(GpuguideError, match=f"no function or class '{wrong}'"):
            library_code.source_of(wrong)


@pytest.mark.slow
def test_the_downloads_say_the_same_in_markdown(site: Project) -> None:
    folder = site.html / "notebooks"
    cells = nbformat.read(folder / "00-folds.ipynb", as_version=4).cells
    text = "\n\n".join(each.source for each in cells if each.cell_type == "markdown")
    for said in (
        "## In short\n\nIt is so.",
        "**Takeaway.** Folds say **what** is inside.",
        "**Question.** What does `third` hold?\n\n<details>\n<summary>Show the answer</summary>\n\nThe number four.",
    ):
        assert said in text
    code = [each for each in cells if each.cell_type == "code"]
    assert [each.source for each in code[1:4]] == ["print(1 + 1)", "first = 1", "second = 2"], "all cells, in order"
    (table,) = [output for each in code for output in each.outputs if "text/markdown" in output.get("data", {})]
    assert "| bf16 | 710 TFLOP/s |" in table["data"]["text/markdown"]
    assert set(table["data"]) == {"text/markdown", "text/plain"}
    assert "Folds say **what** is inside." in (folder / "00-folds.py").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "said"),
    [
        (":::{takeaway}\nOne.\n\nTwo.\n:::", "A takeaway is one sentence"),
        (":::{question}\nWhy?\n:::", "A question needs its answer"),
        (":::{takeaway}\n:::", "Content block expected"),
    ],
)
def test_an_aside_that_is_not_one_stops_the_build(tmp_path: Path, body: str, said: str) -> None:
    project = start(tmp_path)
    project.page("index", body, runs=False)
    build = project.build()
    assert build.status != 0 or said in build.output
    assert said in build.output
