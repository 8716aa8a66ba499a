"""A small site with one tutorial that has a bit of everything, and what its downloads make of it."""

from __future__ import annotations

import ast
import re
import shutil
from pathlib import Path
from typing import Any

import nbformat
import pytest
from bs4 import BeautifulSoup
from small_site import Build, Project, cell, start
from sphinx.errors import SphinxError

from gpuguide.site.notebooks.downloads import check_names

pytestmark = pytest.mark.random_order(disabled=True)  # later tests change the site that all of them share

SITE = {"html_baseurl": "https://example.org/guide", "gpuguide_repository": "https://github.com/someone/guide"}
DRAW = """from gpuguide import plotting

plotting.show(lambda figure, theme: figure.subplots().plot([1, 2]), alt="A line that rises.", caption="A line.")"""
GLUE = """from myst_nb import glue

half = size / 2
glue("half-of-it", f"{half:.1f}", display=False)
glue("as-a-number", half)"""
BODY = f"""
You will halve a number.

```{{cost-card}}
```

:::{{note}}
A note with {{ref}}`a label <there>`, {{doc}}`/docs` and `code`.
:::

{cell("size = 64", "parameters")}

{cell(GLUE, "remove-cell")}

Half of it is {{glue:text}}`half-of-it`, and a copy runs at {{measured}}`ceilings/copy:bandwidth`. $x_i$

(there)=
## A section

{cell("print(size)", "hide-input")}

{cell("print('measured here')", "skip-execution")}

![A black dot](dot.png)

### Deeper

{cell(DRAW)}

:::{{folded}} Solution
It is **half**.
:::

{cell("answer = size / 2", "hide-cell")}
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Project:
    made = start(tmp_path_factory.mktemp("site"))
    made.record("ceilings")
    made.page("index", "```{toctree}\ntutorials/00-halves\ndocs\n```", runs=False)
    made.page("docs", "Text.", runs=False)
    made.page("tutorials/00-halves", BODY, benchmarks="ceilings")
    shutil.copy(Path(__file__).parents[3] / "src/gpuguide/site/theme/static/favicon.svg", made.root / "tutorials")
    path = made.root / "tutorials" / "00-halves.md"
    path.write_text(path.read_text(encoding="utf-8").replace("dot.png", "favicon.svg"), encoding="utf-8")
    return made


@pytest.fixture(scope="module")
def plain(site: Project) -> Build:
    """The build with no address configured; those that follow use its execution cache."""
    build = site.build()
    assert build.status == 0, build.output
    shutil.copytree(site.html / "notebooks", site.root / "plain")
    shutil.copy(site.html / "tutorials" / "00-halves.html", site.root / "plain")
    return build


@pytest.fixture(scope="module")
def configured(site: Project, plain: Build) -> Build:
    """The build with the addresses of site and repository."""
    build = site.build(settings=SITE)
    assert (build.status, build.executed) == (0, set()), build.output
    return build


def read(path: Path) -> Any:
    notebook = nbformat.read(path, as_version=nbformat.NO_CONVERT)
    nbformat.validate(notebook)
    return notebook


def cells(site: Project) -> dict[str, Any]:
    return {cell.id: cell for cell in read(site.root / "plain" / "00-halves.ipynb").cells}


@pytest.mark.slow
def test_the_first_cell_says_what_one_wants_to_know(site: Project, plain: Build) -> None:
    first = read(site.root / "plain" / "00-halves.ipynb").cells[0].source
    assert first.startswith("# 00-halves\n\nYou will halve a number.\n\n- **Reading:** 2 min to read.\n- **Time:** ")
    for part in (
        "- **Hardware:** any computer; one cell measures the machine that runs the notebook",
        "- **On an H100:** ",
        "- **Measured numbers:**\n  - NVIDIA H100 80GB HBM3 · driver",
        "- **Outputs:** 1 figure and 2 printed results, as they came out when the site was built.",
    ):
        assert part in first
    bare = read(site.root / "plain" / "without-outputs" / "00-halves.ipynb").cells[0].source
    assert "- **Outputs:** none until you run it; then 1 figure and 2 printed results." in bare


@pytest.mark.slow
def test_text_is_plain_and_cut_at_headings(site: Project, plain: Build) -> None:
    found = cells(site)
    assert list(found) == [
        *("about", "install", "halves-1", "halves-2", "halves-3", "halves-4"),
        *("there-1", "there-2", "there-3", "there-4"),
        *("deeper-1", "deeper-2", "deeper-3", "deeper-4"),
    ]
    assert found["halves-1"].source == "> **Note.**\n>\n> A note with a label, docs and `code`."
    number = r"\d\.\d\d TB/s"
    assert re.fullmatch(rf"Half of it is 32\.0, and a copy runs at {number}\. \$x_i\$", found["halves-4"].source)
    assert found["there-1"].source == "## A section"
    assert "![A black dot](data:image/svg+xml;base64," in found["there-4"].source
    assert found["deeper-1"].source == "### Deeper"
    assert found["deeper-3"].source == "<details>\n<summary>Solution</summary>\n\nIt is **half**.\n\n</details>"


@pytest.mark.slow
def test_cells_keep_the_tags_that_notebook_tools_know(site: Project, plain: Build) -> None:
    found = cells(site)
    assert found["halves-2"].metadata == {"tags": ["parameters"]}
    assert found["halves-3"].metadata == {"jupyter": {"source_hidden": True, "outputs_hidden": True}}
    assert found["there-2"].metadata == {"jupyter": {"source_hidden": True}}
    assert found["there-3"].metadata == {"tags": ["nbval-ignore-output"]}, "it runs on the reader's machine"
    assert found["there-3"].source == "print('measured here')"


@pytest.mark.slow
def test_glued_values_are_printed(site: Project, plain: Build) -> None:
    glued = cells(site)["halves-3"]
    assert "myst_nb" not in glued.source
    assert [output["text"] for output in glued.outputs] == ["half-of-it: 32.0\nas-a-number: 32.0\n"]
    names: dict[str, Any] = {"size": 64}
    exec(compile(glued.source, "cell", "exec"), names)
    assert names["half"] == 32


@pytest.mark.slow
def test_figures_are_images_with_their_text(site: Project, plain: Build) -> None:
    (output,) = cells(site)["deeper-2"].outputs
    assert set(output.data) == {"image/png", "text/plain"}
    assert output.metadata == {"image/png": {"alt": "A line that rises."}}
    assert output.data["image/png"].startswith("iVBOR")


@pytest.mark.slow
def test_the_three_forms_hold_the_same_code(site: Project, plain: Build) -> None:
    folder = site.root / "plain"
    full, bare = read(folder / "00-halves.ipynb"), read(folder / "without-outputs" / "00-halves.ipynb")
    assert [cell.id for cell in full.cells] == [cell.id for cell in bare.cells]
    assert [cell.source for cell in full.cells[1:]] == [cell.source for cell in bare.cells[1:]]
    assert not any(cell.outputs or cell.execution_count for cell in bare.cells if cell.cell_type == "code")
    script = (folder / "00-halves.py").read_text(encoding="utf-8")
    code = "\n".join(cell.source for cell in bare.cells if cell.cell_type == "code")
    assert ast.dump(ast.parse(script)) == ast.dump(ast.parse(code))
    assert "[Image: A black dot]" in script
    assert "base64" not in script


@pytest.mark.slow
def test_nothing_leads_anywhere_unless_the_address_is_known(site: Project, plain: Build, configured: Build) -> None:
    text = cells(site)["halves-1"].source
    assert "](" not in text
    now = {cell.id: cell.source for cell in read(site.html / "notebooks" / "00-halves.ipynb").cells}
    page = "https://example.org/guide/tutorials/00-halves.html"
    assert f"[a label]({page}#there)" in now["halves-1"]
    assert "[docs](https://example.org/guide/docs.html)" in now["halves-1"]
    assert f"- **From:** [a page]({page}) of gpuguide 0.1.0." in now["about"]
    wheel = "https://example.org/guide/notebooks/gpuguide-0.1.0-py3-none-any.whl"
    assert wheel in now["install"]
    assert "http" not in cells(site)["install"].source


@pytest.mark.slow
def test_the_page_offers_them_and_colab_if_the_repository_is_known(
    site: Project, plain: Build, configured: Build
) -> None:
    def links(path: Path) -> dict[str, str]:
        page = BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")
        return {link.text: str(link["href"]) for link in page.select(".gg-cost .gg-downloads a")}

    before = links(site.root / "plain" / "00-halves.html")
    assert before == {
        "Notebook": "../notebooks/00-halves.ipynb",
        "Notebook without outputs": "../notebooks/without-outputs/00-halves.ipynb",
        "Python script": "../notebooks/00-halves.py",
        "All tutorials (zip)": "../notebooks/gpuguide-tutorials.zip",
    }
    assert all((site.html / "tutorials" / target).is_file() for target in before.values())
    colab = "https://colab.research.google.com/github/someone/guide/blob/gh-pages/notebooks/00-halves.ipynb"
    assert links(site.html / "tutorials" / "00-halves.html") == {**before, "Open in Colab": colab}
    assert links(site.html / "index.html") == {}


@pytest.mark.slow
def test_a_page_can_be_edited_and_reported_on_if_the_repository_is_known(
    site: Project, plain: Build, configured: Build
) -> None:
    def links(path: Path) -> dict[str, str]:
        page = BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")
        return {link.text: str(link["href"]) for link in page.select("a") if "/someone/guide/" in str(link["href"])}

    assert links(site.root / "plain" / "00-halves.html") == {}
    edit, report = (
        "https://github.com/someone/guide/edit/main/tutorials/00-halves.md",
        "https://github.com/someone/guide/issues/new?title=On%20tutorials/00-halves.md%3A%20",
    )
    found = links(site.html / "tutorials" / "00-halves.html")
    assert {address for address in found.values() if "colab" not in address} == {edit, report}
    assert links(site.html / "search.html") == {}


@pytest.mark.slow
def test_they_are_made_when_something_changed_and_only_then(site: Project, configured: Build) -> None:
    folder = site.html / "notebooks"
    times = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    assert len(times) == 5
    assert site.build(settings=SITE).read == set()
    assert {path: path.stat().st_mtime_ns for path in times} == times

    (folder / "00-halves.py").unlink()
    (folder / "00-gone.ipynb").write_text("{}", encoding="utf-8")
    again = site.build(settings=SITE)
    assert (again.read, again.executed) == ({"tutorials/00-halves"}, set())
    assert {path for path in folder.rglob("*") if path.is_file()} == set(times)

    other = folder / "gpuguide-tutorials.zip"
    before = other.read_bytes()
    site.edit("errors.py", "The one exception", "The only exception")
    assert site.build(settings=SITE).status == 0
    assert other.read_bytes() != before, "the wheel holds the library as it is"


@pytest.mark.slow
def test_ids_stay_when_another_section_changes(site: Project, configured: Build) -> None:
    before = [cell.id for cell in read(site.html / "notebooks" / "00-halves.ipynb").cells]
    path = site.root / "tutorials" / "00-halves.md"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("### Deeper", f"{cell('1 + 1')}\n\n### Deeper"), encoding="utf-8")
    assert site.build(settings=SITE).status == 0
    after = [cell.id for cell in read(site.html / "notebooks" / "00-halves.ipynb").cells]
    assert [name for name in after if name not in before] == ["there-5"]
    assert [name for name in after if name in before] == before


BAD = {
    "a second page of that name": (
        {"tutorials/00-halves": "Text.", "tutorials/more/00-Halves": "Text."},
        ("tutorials/more/00-Halves.md:1: its notebook", "Rename one of them"),
    ),
    "a glued object": (
        {"tutorials/00-page": "Text.\n\n" + cell("from myst_nb import glue\n\nglue('x', object())")},
        ("tutorials/00-page.md:19: The glued value 'x'", "Glue a string or a number"),
    ),
    "raw HTML": (
        {"tutorials/00-page": "Text.\n\n```{raw} html\n<hr>\n```\n"},
        ("tutorials/00-page.md:18: Raw html", "Write it as Markdown"),
    ),
    "no sentence at the top": (
        {"tutorials/00-page": "## Straight on\n\nText."},
        ("tutorials/00-page.md:1: a tutorial begins with a title and one sentence",),
    ),
}


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A site into which tests put one fault at a time."""
    made = start(tmp_path_factory.mktemp("faulty"))
    made.page("index", "```{toctree}\n:glob:\n\ntutorials/**\n```", runs=False)
    return made


@pytest.mark.slow
@pytest.mark.parametrize("case", BAD)
def test_a_page_that_cannot_be_offered_fails_every_build(faulty: Project, case: str) -> None:
    pages, messages = BAD[case]
    shutil.rmtree(faulty.root / "tutorials", ignore_errors=True)
    for name, body in pages.items():
        faulty.page(name, body)
    for _ in range(2):
        build = faulty.build()
        assert build.status != 0
        for message in messages:
            assert message in build.output


def test_a_script_that_would_hide_a_module_is_named() -> None:
    check_names({"tutorials/01-torch": "tutorials/01-torch.md", "tutorials/nowhere_known": "nowhere_known.md"})
    with pytest.raises(SphinxError, match=r"torch\.md:1: its script torch\.py .* Begin its name with a number"):
        check_names({"tutorials/torch": "tutorials/torch.md"})


@pytest.mark.parametrize(("name", "value"), [("gpuguide_repository", "someone/guide"), ("html_baseurl", "example.org")])
def test_what_is_no_address_stops_the_build(faulty: Project, name: str, value: str) -> None:
    build = faulty.build(settings={name: value})
    assert build.status != 0
    assert f"{name} is {value!r}; write https://HOST/" in build.output
