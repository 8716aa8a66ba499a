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


def tab(code: str, label: str) -> str:
    """Return the source of a snippet in a tab."""
    return cell(code, "snippet").replace(":tags:", f":tab: {label}\n:tags:")


BODY = f"""
You will look at folds.

```{{cost-card}}
```

## In short

It is {{given}}`so`.

{tab("print(1 + 1)", "NumPy & co")}

{tab("print(1 + 2)", "gpuguide")}

{cell("assert True", "remove-cell")}

Text between.

{tab("print(1 + 3)", "alone")}

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

:::{{symptom}} The third is `4`, and "odd"
1. Look at {{given}}`3` → call `third` first.
2. It → arrows → point, [here](#figures) → *read* on.
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
def test_the_box_ends_with_links_to_the_checklists(page: BeautifulSoup) -> None:
    links = page.select("#in-short > p.gg-checklists:last-child a")
    assert [(link.get_text(), link["href"]) for link in links] == [
        ("The third is 4, and “odd”", "#the-third-is-4-and-odd")
    ]
    assert links[0].select("code")


@pytest.mark.slow
def test_a_symptom_has_a_heading_an_address_and_remedies(page: BeautifulSoup) -> None:
    symptom = page.select_one(".gg-symptom")
    assert symptom is not None
    assert symptom["id"] == "the-third-is-4-and-odd"
    heading = symptom.select_one("h3.gg-symptom-title")
    assert heading is not None, "one level below its section"
    assert heading.get_text() == "The third is 4, and “odd”#"
    assert [link["href"] for link in heading.select("a.headerlink")] == ["#the-third-is-4-and-odd"]
    assert [item.get_text().strip() for item in symptom.select("ol > li")] == [
        "Look at 3 → call third first.",
        "It → arrows → point, here → read on.",
    ]
    assert [remedy.get_text() for remedy in symptom.select("li .gg-remedy")] == ["→ call third first.", "→ read on."]


@pytest.mark.slow
def test_neighbouring_cells_with_labels_are_tabs_that_need_no_script(page: BeautifulSoup) -> None:
    (group,) = page.select("fieldset.gg-tabs")
    assert group.legend is not None
    assert group.legend.get_text() == "Code with"
    buttons, labels, panels = (group.select(f":scope > {what}") for what in ("input", "label", ".gg-tab-panel"))
    assert [button["type"] for button in buttons] == ["radio", "radio"]
    assert len({button["name"] for button in buttons}) == 1
    assert ["checked" in button.attrs for button in buttons] == [True, False]
    assert [label["for"] for label in labels] == [button["id"] for button in buttons]
    assert [label.get_text() for label in labels] == ["NumPy & co", "gpuguide"]
    for panel, code, printed in zip(panels, ("print(1 + 1)", "print(1 + 2)"), "23", strict=True):
        assert [block.get_text().strip() for block in panel.select("pre")] == [code, printed]
    identifiers = [element["id"] for element in page.select("[id]")]
    assert len(set(identifiers)) == len(identifiers)
    (alone,) = (block for block in page.select("div.highlight pre") if block.get_text().strip() == "print(1 + 3)")
    assert alone.find_parent("fieldset") is None


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
        "**The third is `4`, and “odd”**\n\n1. Look at 3 → call `third` first.\n2. It → arrows",
        "**Question.** What does `third` hold?\n\n<details>\n<summary>Show the answer</summary>\n\nThe number four.",
    ):
        assert said in text
    code = [each for each in cells if each.cell_type == "code"]
    assert [each.source for each in code[1:6]] == [
        "print(1 + 1)",
        "print(1 + 2)",
        "assert True",
        "print(1 + 3)",
        "first = 1",
    ], "all cells, in order"
    sources = [each.source for each in cells]
    for label, shown in (("**NumPy & co**:", "print(1 + 1)"), ("**gpuguide**:", "print(1 + 2)")):
        assert sources[sources.index(shown) - 1].endswith(label)
    (table,) = [output for each in code for output in each.outputs if "text/markdown" in output.get("data", {})]
    assert "| bf16 | 710 TFLOP/s |" in table["data"]["text/markdown"]
    assert set(table["data"]) == {"text/markdown", "text/plain"}
    assert "Folds say **what** is inside." in (folder / "00-folds.py").read_text(encoding="utf-8")


WRONG = [
    (":::{takeaway}\nOne.\n\nTwo.\n:::", "A takeaway is one sentence"),
    (":::{question}\nWhy?\n:::", "A question needs its answer"),
    (":::{takeaway}\n:::", "Content block expected"),
    (":::{symptom}\n1. Look → do.\n:::", "1 argument(s) required"),
    (":::{symptom} It fails\n:::", "Content block expected"),
    (":::{symptom} It fails\n- Look → do.\n:::", "A symptom holds one numbered list"),
    (":::{symptom} It fails\nText.\n\n1. Look → do.\n:::", "A symptom holds one numbered list"),
    (":::{symptom} It fails\n1. Look → do.\n2. Look again.\n:::", "' → ' and a remedy: 'Look again.'"),
    (":::{symptom} It fails\n1. Look →\n:::", "' → ' and a remedy: 'Look →'"),
    (":::{symptom} It fails\n1. → Do.\n:::", "' → ' and a remedy: '→ Do.'"),
]


@pytest.mark.slow
def test_an_aside_that_is_not_one_is_named_with_its_page(tmp_path: Path) -> None:
    project = start(tmp_path)
    names = [f"page-{number}" for number in range(len(WRONG))]
    project.page("index", "```{toctree}\n" + "\n".join(names) + "\n```", runs=False)
    for name, (body, _) in zip(names, WRONG, strict=True):
        project.page(name, body, runs=False)
    output = project.build().output
    for name, (_, said) in zip(names, WRONG, strict=True):
        assert any(f"{name}.md" in line and said in line for line in output.splitlines()), (name, said, output)
