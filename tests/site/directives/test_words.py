"""Words that records decide: with another reference GPU, text, figures, downloads and the ledger change as one."""

from __future__ import annotations

import re

import nbformat
import pytest
import synthetic_records as synthetic
from bs4 import BeautifulSoup
from small_site import Project, cell, start

pytestmark = pytest.mark.random_order(disabled=True)  # later tests change the site that all of them share

PAGE = """
You will copy on {gpu}`a short`.

## Where {gpu}`A short` is

The {gpu}`name`, of the {gpu}`architecture` kind, copies at {measured}`ceilings/copy:bandwidth`, of {datasheet}`reference memory_bandwidth`, and {holds}`faster than a host does | measurement("ceilings/copy:bandwidth").p25 > 1e12`. See {record}`its ceilings <ceilings>`.
"""  # noqa: E501
FIGURE = """
from gpuguide import plotting
from gpuguide.measure import records, reference_gpu, store

record = store.load_published("ceilings")


def draw(figure, theme):
    plotting.bars(figure.subplots(), record, metric="bandwidth", contenders=["copy"])


plotting.show(draw, alt="A bar.", caption=f"A copy on {reference_gpu.word('a short')}.")
"""
CLAIMS = """
[topics]
speed = "How fast"

[sources.unread]
title = "A standard"
publisher = "A body"
url = "https://example.org/standard"
looked_at = "not verified"
"""
CLAIM = """
[[claims]]
id = "copies-are-fast"
topic = "speed"
note = "000"
claim = "A copy runs at over 1 TB/s."
verdict = "true"
right = "On {gpu('a short')} with {datasheet('reference', 'memory')}: {measurement('ceilings/copy:bandwidth')}."
kind = "measured"
predicate = "measurement('ceilings/copy:bandwidth').p25 > 1e12"
"""
FALSE = '{holds}`slower than a host | measurement("ceilings/copy:bandwidth").p75 < 1e9`'


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    made = start(tmp_path_factory.mktemp("site"))
    for path in (made.library / "claims").glob("*.toml"):
        path.unlink()
    for name, text in (("claims", CLAIMS), ("speed", CLAIM)):
        (made.library / "claims" / f"{name}.toml").write_text(text, encoding="utf-8")
    made.record("ceilings")
    made.record("ceilings", slower=0.5, device=synthetic.OTHER)
    made.page("tutorials/00-copies", PAGE + cell(FIGURE) + "\n```{claims} speed\n```", benchmarks="ceilings")
    made.page("records", "```{records}\n```\n\n```{benchmark-list}\n```", runs=False)
    made.page("index", "```{toctree}\nrecords\ntutorials/00-copies\n```", runs=False)
    return made


def said(project: Project) -> dict[str, str]:
    """Return what the page says in every place that speaks of the reference GPU."""
    page = BeautifulSoup((project.html / "tutorials" / "00-copies.html").read_text(encoding="utf-8"), "html.parser")
    article = page.select_one("article")
    figure, claim = page.select_one("figure"), page.select_one(".gg-claim")
    assert article is not None
    assert figure is not None
    assert claim is not None
    number, link = article.select_one("a.gg-number"), article.find("a", string="its ceilings")
    assert number is not None
    assert link is not None
    notebook = nbformat.read(project.html / "notebooks" / "00-copies.ipynb", as_version=4)
    caption = figure.select_one(".caption-text, figcaption")
    stamp = figure.select_one(".gg-stamp")
    assert caption is not None
    assert stamp is not None
    return {
        "page": article.get_text(),
        "number": f"{number.get_text()} {number['title']}",
        "caption": caption.get_text(),
        "stamp": stamp.get_text(),
        "claim": claim.get_text(),
        "record": str(link["href"]),
        "notebook": "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown"),
        "outputs": str([cell.outputs for cell in notebook.cells if cell.cell_type == "code"]),
        "script": (project.html / "notebooks" / "00-copies.py").read_text(encoding="utf-8"),
        "list": (project.html / "records.html").read_text(encoding="utf-8"),
    }


SAYS = {
    # place: what it says with the H100, and what with the H200 that is twice as fast
    "page": ("You will copy on an H100", "You will copy on an H200"),
    "number": ("; NVIDIA H100 80GB HBM3 · driver", "; NVIDIA H200 · driver"),
    "caption": ("A copy on an H100.", "A copy on an H200."),
    "stamp": ("NVIDIA H100 80GB HBM3 · driver", "NVIDIA H200 · driver"),
    "claim": ("On an H100 with 74.5 GiB", "On an H200 with 131 GiB"),
    "record": ("record-nvidia-h100-80gb-hbm3-ceilings", "record-nvidia-h200-ceilings"),
    "notebook": ("The NVIDIA H100 80GB HBM3, of the Hopper kind, copies at", "The NVIDIA H200, of the Hopper kind"),
    "outputs": ("A copy on an H100.", "A copy on an H200."),
    "script": ("Where An H100 is", "Where An H200 is"),
    "list": ("time on our H100", "time on our H200"),
}


@pytest.mark.slow
def test_everything_that_speaks_of_the_gpu_follows_the_setting(project: Project) -> None:
    project.reference(synthetic.PUBLISHED[0])
    first = project.build()
    assert first.status == 0, first.output
    before = said(project)
    assert not {place: before[place] for place, (words, _) in SAYS.items() if words not in before[place]}

    project.reference(synthetic.OTHER[0])
    second = project.build()
    assert (second.status, second.executed) == (0, {"00-copies"}), second.output
    after = said(project)
    assert not {place: after[place] for place, (_, words) in SAYS.items() if words not in after[place]}
    speed = [float(re.search(r"([\d.]+) TB/s", each["number"])[1]) for each in (before, after)]  # type: ignore[index]
    assert speed[1] == pytest.approx(2 * speed[0], rel=0.01)
    assert "faster than a host does. See" in after["page"]
    for text in (after["notebook"], after["script"], after["page"]):
        assert "host does |" not in text
        assert "{gpu}" not in text

    third = project.build()
    assert (third.status, third.executed, third.read) == (0, set(), set())


@pytest.mark.slow
def test_words_that_do_not_hold_stop_every_build(project: Project) -> None:
    project.page("wrong", f"A copy is {FALSE} here.\n\nIt is {{holds}}`fast`.\n\nAn {{gpu}}`shrt`.", runs=False)
    try:
        for _ in range(2):
            build = project.build()
            assert build.status != 0
            line = project.line_of("wrong", "slower than a host")
            assert f"wrong.md:{line}: ERROR: 'slower than a host' does not hold on NVIDIA H" in build.output
            assert re.search(r"Found: ceilings/copy:bandwidth is \d\.\d\d TB/s \(p25", build.output)
            assert f"wrong.md:{line + 2}: ERROR: 'fast' is no assertion." in build.output
            assert (
                f"wrong.md:{line + 4}: ERROR: There is no form of the GPU's name named 'shrt'. Did you mean"
                in build.output
            )
    finally:
        (project.root / "wrong.md").unlink()


@pytest.mark.slow
def test_a_setting_without_records_says_which_there_are(project: Project) -> None:
    project.reference("nvidia-b200")
    build = project.build()
    assert build.status != 0
    assert "names the device 'nvidia-b200', of which there are no published records." in build.output
    assert "There are records of nvidia-h100-80gb-hbm3, nvidia-h200." in build.output
