"""One page with every part on it: figure, formula, cost card, claims, hardware, a cell that is not run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import synthetic_records as synthetic
from bs4 import BeautifulSoup
from small_site import Project, cell, start
from synthetic_records import BENCHMARKS

from gpuguide.measure.records import Case
from gpuguide.plotting import text_boxes

pytestmark = pytest.mark.random_order(disabled=True)  # later tests change the site that all of them share

DRAW = """from gpuguide import plotting


def draw(figure, theme):
    ax = figure.subplots()
    plotting.curves(ax, "copy-size", x="working_set", metric="bandwidth")
    plotting.ceiling(ax, 3e12, "a ceiling")
    plotting.log_axis(ax.xaxis, "B", "working set")
    plotting.linear_axis(ax.yaxis, "B/s", "bandwidth")


plotting.show(draw, alt="A curve that rises.", caption="Copies of growing size.")"""
BODY = f"""
```{{cost-card}}
```

A product takes $2mnk$ operations, with $W \\in \\mathbb{{R}}^{{n}}$.

$$
\\begin{{aligned}} a &= \\frac{{b}}{{c}} \\\\ d &= e \\end{{aligned}}
$$

{cell(DRAW)}

{cell("import time", "skip-execution")}

```{{gpu-overview}}
```

```{{gpu-cards}}
```

```{{datasheet-sources}}
```

```{{benchmark-list}}
```
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    made = start(tmp_path_factory.mktemp("site"))
    for name in BENCHMARKS:
        made.record(name)
    made.page("index", BODY, benchmarks="copy-size")
    build = made.build()
    assert build.status == 0, build.output
    return made


@pytest.fixture
def page(project: Project) -> BeautifulSoup:
    return BeautifulSoup((project.html / "index.html").read_text(encoding="utf-8"), "html.parser")


@pytest.mark.slow
def test_a_figure_has_both_schemes_alt_text_caption_and_stamp(project: Project, page: BeautifulSoup) -> None:
    figure = page.select_one("figure.gg-figure")
    assert figure is not None
    images = figure.select("img")
    assert [("only-light" in image["class"], "only-dark" in image["class"]) for image in images] == [
        (True, False),
        (False, True),
    ]
    assert {image["alt"] for image in images} == {"A curve that rises."}
    light, dark = ((project.html / str(image["src"])).read_text(encoding="utf-8") for image in images)
    assert light != dark
    assert "<text" in light
    assert "TB/s" in light
    assert "DejaVu" not in light
    assert "Copies of growing size." in figure.text
    assert "NVIDIA H100 80GB HBM3" in figure.text
    assert "n = 20" in figure.text
    assert not list((project.html / "_images").glob("*.png")), "the PNG for notebooks is not copied to the site"


@pytest.mark.slow
def test_a_figure_has_a_drawing_for_a_phone_an_address_and_its_data(project: Project, page: BeautifulSoup) -> None:
    figure = page.select_one("figure.gg-figure")
    assert figure is not None
    sources = figure.select("picture > source")
    assert [source.find_next_sibling("img")["class"][0] for source in sources] == ["only-light", "only-dark"]  # type: ignore[index]
    for source in sources:
        assert str(source["media"]).startswith("(max-width")
        narrow = (project.html / str(source["srcset"])).read_text(encoding="utf-8")
        assert text_boxes.view_box(narrow)[0] < 334
        assert text_boxes.too_small(narrow) == []
    assert figure["id"] == "fig-index"
    title = figure.select_one("figcaption .gg-figure-title")
    assert title is not None
    assert title.text == "Copies of growing size."
    itself, data = figure.select(".gg-figure-links a")
    assert itself["href"] == "#fig-index"
    header, *rows = (project.html / str(data["href"])).read_text(encoding="utf-8").splitlines()
    assert header == "series,x_name,x,x_unit,y_name,y,y_unit,y_p25,y_p75"
    assert len(rows) == len(synthetic.cases_of("copy-size"))


@pytest.mark.slow
def test_the_data_of_a_figure_that_is_gone_goes_too(tmp_path: Path) -> None:
    project = start(tmp_path)
    project.record("copy-size")
    project.page("index", cell(DRAW), benchmarks="copy-size")
    assert project.build().status == 0
    assert (project.html / "figures" / "index" / "fig-index.csv").exists()
    named = DRAW.replace("alt=", 'name="copies", alt=')
    project.page("index", cell(named), benchmarks="copy-size")
    assert project.build().status == 0
    assert [path.name for path in (project.html / "figures" / "index").iterdir()] == ["fig-copies.csv"]


@pytest.mark.slow
def test_formulas_are_mathml_without_scripts(page: BeautifulSoup) -> None:
    assert len(page.select("math")) == 3
    assert "ℝ" in page.select("math")[1].text
    assert page.select('mtd[style="text-align:right"]')
    assert not page.find_all("script", src=lambda source: source and "math" in source.lower())


@pytest.mark.slow
def test_the_line_under_the_title_tells_what_a_page_costs(page: BeautifulSoup) -> None:
    card = page.select_one("h1 + .gg-cost")
    assert card is not None
    text = " ".join(card.get_text(" ").split())
    assert re.match(r"\d+ min to read · ", text)
    assert "to run on a CPU · numbers from NVIDIA H100 80GB HBM3" in text
    assert "no time" not in text
    assert "On an H100: 1 min 15 s to measure its benchmarks again." in text
    assert "nothing" not in text, "that a page fetches nothing is no news"


@pytest.mark.slow
def test_a_cell_that_is_not_run_says_so(page: BeautifulSoup) -> None:
    notes = page.select(".gg-not-run")
    assert len(notes) == 1
    assert notes[0].text.startswith("Not run here: it times the machine")


@pytest.mark.slow
def test_hardware_shows_measured_beside_datasheet(page: BeautifulSoup) -> None:
    assert re.search(r"measured [\d.,]+", page.text)
    assert "NVIDIA H200" in page.text
    links = {str(link["href"]) for link in page.select("a.gg-source")}
    assert links
    assert all(page.find(id=link.removeprefix("#")) for link in links)


@pytest.mark.slow
def test_a_readers_own_record_is_a_second_curve(project: Project) -> None:
    project.own_record("copy-size")
    build = project.build(own=True)
    assert build.status == 0, build.output
    assert build.executed == {"index"}
    page = BeautifulSoup((project.html / "index.html").read_text(encoding="utf-8"), "html.parser")
    figure = page.select_one("figure.gg-figure")
    assert figure is not None
    stamps = [stamp.text for stamp in figure.select(".gg-stamp")]
    assert len(stamps) == 2
    assert "RTX 4090" in stamps[1]
    light = (project.html / str(figure.select("img")[0]["src"])).read_text(encoding="utf-8")
    assert ">RTX 4090 (yours)<" in light
    assert "stroke-dasharray" in light


def article(page: Path) -> str:
    """Return what a page says; around it stand digests of style sheets."""
    return str(BeautifulSoup(page.read_text(encoding="utf-8"), "html.parser").select_one("article"))


FIGURES = """from gpuguide import plotting


def draw(figure, theme):
    left, right = figure.subplots(1, 2)
    plotting.bars(left, "ceilings", metric="throughput", contenders=["matmul-bf16", "matmul-fp16"])
    records = plotting.load_published_and_mine("ceilings", "launch")
    for record in records:
        samples = record.case("launch").metrics["time"].samples
        right.plot(samples, color=theme.text, **plotting.stroke(record))
    plotting.name_devices(right, records)
    plotting.legend(right)


plotting.show(draw, alt="Bars and a line.", caption="Ceilings.")"""


@pytest.mark.slow
def test_ones_own_measurements_reach_the_figures_a_table_and_the_downloads(tmp_path: Path) -> None:
    """From a reader's records to the page, of a GPU that lacks bf16."""
    project = start(tmp_path)
    for name in ("ceilings", "copy-size"):
        project.record(name)
    project.page("index", "```{toctree}\ntutorials/00-copies\n```", runs=False)
    body = f"You will copy.\n\n{cell(DRAW)}\n{cell(FIGURES)}\n\n```{{your-records}}\n```\n"
    project.page("tutorials/00-copies", body, benchmarks="ceilings, copy-size")
    build = project.build()
    assert build.status == 0, build.output
    page = project.html / "tutorials" / "00-copies.html"
    before = article(page)
    assert "gg-yours" not in before

    lacking = {"matmul-bf16": Case({}, "matmul-bf16", 0, "skipped", "needs bf16, which a T4 lacks")}
    for name in ("ceilings", "copy-size"):
        cases = [lacking.get(case.contender, case) for case in synthetic.cases_of(name, slower=9)]
        synthetic.write(synthetic.record(name, cases, ("nvidia-t4", "NVIDIA T4")), tmp_path / "own")
    build = project.build(own=True)
    assert build.status == 0, build.output
    assert build.executed == {"00-copies"}
    text = page.read_text(encoding="utf-8")
    soup = BeautifulSoup(text, "html.parser")
    for figure in soup.select("figure.gg-figure"):
        light = (page.parent / str(figure.select("img")[0]["src"])).read_text(encoding="utf-8")
        assert ">T4 (yours)<" in light
        assert "measured by you on NVIDIA T4" in str(figure.select("img")[0]["alt"])
        assert any("simulated, not measured" in stamp.text for stamp in figure.select(".gg-stamp"))
    (table,) = soup.select("table.gg-yours")
    cells = [row.select("td") for row in table.select("tbody tr")]
    rows = {row[0].select("code")[0].text: [each.text.strip() for each in row] for row in cells}
    assert list(rows)[:2] == ["ceilings/copy", "ceilings/matmul-bf16"]
    assert len(rows) == 13
    assert rows["ceilings/matmul-bf16"][2].startswith("skipped, needs bf16")
    assert rows["copy-size/copy"][0].startswith("copy-size/copy working_set=")
    assert rows["copy-size/copy"][4].endswith("(18)")
    assert 0 < float(rows["copy-size/copy"][3]) < 1
    assert "Yours is simulated, not measured." in text
    notebook = (project.html / "notebooks" / "00-copies.ipynb").read_text(encoding="utf-8")
    assert "| measured | published | yours | times as fast | range (cases) |" in notebook

    assert project.build().executed == set(), "without them, the outputs from before are still in the cache"
    assert article(page) == before
