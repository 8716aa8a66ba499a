"""A GPU for each page: one page comes to speak of another GPU, with all that is said of it; the others stay."""

from __future__ import annotations

import json
import re
from pathlib import Path

import nbformat
import pytest
import synthetic_records as synthetic
from bs4 import BeautifulSoup
from small_site import Build, Project, cell, start

USUAL, ANOTHER = synthetic.OTHER, synthetic.PUBLISHED
"""The default, an H200 that is twice as fast, and the H100"""
PAGE = """
You will copy on {gpu}`a short`.

```{cost-card}
```

## Where {gpu}`A short` is

The {gpu}`name` copies at {measured}`ceilings/copy:bandwidth`, of {datasheet}`reference memory_bandwidth`, and {holds}`faster than a host does | measurement("ceilings/copy:bandwidth").p25 > 1e12`. See {record}`its ceilings <ceilings>`. Glued: {glue:text}`rate`. Will it {doc}`fit </fits>`?

```{claims} TOPIC
```

```{your-records}
```
"""  # noqa: E501
FIGURE = """
from myst_nb import glue

from gpuguide import plotting
from gpuguide.measure import measure_here, records, reference_gpu, store

record = store.load_published("ceilings")
glue("rate", reference_gpu.word("short"), display=False)
print("computed for", reference_gpu.word("name"), record.median("copy", "bandwidth"))


def draw(figure, theme):
    plotting.bars(figure.subplots(), record, metric="bandwidth", contenders=["copy"])


plotting.show(draw, alt="A bar.", caption=f"A copy on {reference_gpu.word('a short')}.")
"""
CLAIMS = """
[topics]
speed = "How fast"
sizes = "How large"

[sources.unread]
title = "A standard"
publisher = "A body"
url = "https://example.org/standard"
looked_at = "not verified"
"""
CLAIM = """
[[claims]]
id = "NAME-copies-are-fast"
topic = "NAME"
note = "000"
claim = "A copy of NAME runs at over 1 TB/s."
verdict = "true"
right = "On {gpu('a short')} with {datasheet('reference', 'memory')}: {measurement('ceilings/copy:bandwidth')}."
kind = "measured"
predicate = "measurement('ceilings/copy:bandwidth').p25 > 1e12"
"""
SAYS = {
    # place: what it says of the H200, and what of the H100
    "page": ("You will copy on an H200", "You will copy on an H100"),
    "cost": ("numbers from NVIDIA H200", "numbers from NVIDIA H100 80GB HBM3"),
    "costs": ("On an H200: 1 min 15 s", "On an H100: 1 min 15 s"),
    "number": ("; NVIDIA H200 · driver", "; NVIDIA H100 80GB HBM3 · driver"),
    "glued": ("Glued: H200", "Glued: H100"),
    "caption": ("A copy on an H200.", "A copy on an H100."),
    "stamp": ("NVIDIA H200 · driver", "NVIDIA H100 80GB HBM3 · driver"),
    "claim": ("On an H200 with 131 GiB", "On an H100 with 74.5 GiB"),
    "how": ("NVIDIA H200 · driver", "NVIDIA H100 80GB HBM3 · driver"),
    "record": ("record-nvidia-h200-ceilings", "record-nvidia-h100-80gb-hbm3-ceilings"),
    "yours": ("beside the published NVIDIA H200.", "beside the published NVIDIA H100 80GB HBM3."),
    "notebook": ("The NVIDIA H200 copies at", "The NVIDIA H100 80GB HBM3 copies at"),
    "facts": ("\n  - NVIDIA H200 · driver", "\n  - NVIDIA H100 80GB HBM3 · driver"),
    "outputs": ("computed for NVIDIA H200", "computed for NVIDIA H100 80GB HBM3"),
    "script": ("Where An H200 is", "Where An H100 is"),
    "calculator": ("fits.html", "fits.html?gpu=h100-sxm"),
}
PAGES = {"00-copies": "speed", "01-sizes": "sizes"}


def write_pages(project: Project, **gpus: str) -> None:
    """Write both tutorials, each with the GPU that is given for its topic."""
    for name, topic in PAGES.items():
        body = PAGE.replace("TOPIC", topic) + cell(FIGURE)
        project.page(f"tutorials/{name}", body, benchmarks="ceilings", topics=topic, gpu=gpus.get(topic, ""))


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    made = start(tmp_path_factory.mktemp("site"))
    for path in (made.library / "claims").glob("*.toml"):
        path.unlink()
    (made.library / "claims" / "claims.toml").write_text(CLAIMS, encoding="utf-8")
    for topic in PAGES.values():
        text = CLAIM.replace("NAME", topic)
        (made.library / "claims" / f"{topic}.toml").write_text(text, encoding="utf-8")
    made.reference(USUAL[0])
    made.record("ceilings", slower=0.5, device=USUAL)
    made.record("ceilings", device=ANOTHER)
    made.own_record("ceilings")
    write_pages(made)
    made.page("records", "```{records}\n```\n\n```{benchmark-list}\n```", runs=False)
    made.page("claims", "```{all-claims}\n```", runs=False)
    made.page("fits", "```{will-it-fit}\n```", runs=False)
    made.page("status", "```{status}\n```\n\n```{page-status}\n```\n\n```{record-status}\n```", runs=False)
    listed = ":glob:\n\nrecords\nclaims\nfits\nstatus\ntutorials/*"
    made.page("index", f"We measured {{gpu}}`a short`.\n\n```{{toctree}}\n{listed}\n```", runs=False)
    return made


def words(node: object) -> str:
    """Return the text of a part of a page, which must be there."""
    assert node is not None
    return " ".join(node.get_text().split())  # type: ignore[attr-defined]


def said(project: Project, name: str) -> dict[str, str]:
    """Return what a tutorial says in every place that speaks of its GPU."""
    html = BeautifulSoup((project.html / "tutorials" / f"{name}.html").read_text(encoding="utf-8"), "html.parser")
    article = html.select_one("article")
    assert article is not None
    number, link = article.select_one("a.gg-number"), article.find("a", string="its ceilings")
    fits = article.find("a", string="fit")
    assert number is not None
    assert link is not None
    assert fits is not None
    notebook = nbformat.read(project.html / "notebooks" / f"{name}.ipynb", as_version=4)
    prose = [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]
    return {
        "page": words(article),
        "cost": words(article.select_one(".gg-facts")),
        "costs": words(article.select_one(".gg-needs")),
        "number": f"{number.get_text()} {number['title']}",
        "glued": words(article),
        "caption": words(article.select_one("figcaption")),
        "stamp": words(article.select_one("figure .gg-stamp")),
        "claim": words(article.select_one(".gg-claim")),
        "how": words(article.select_one(".gg-claim .gg-how")),
        "record": str(link["href"]),
        "yours": words(article.select_one("p.gg-yours")),
        "notebook": "\n".join(prose),
        "facts": prose[0],
        "outputs": str([cell.outputs for cell in notebook.cells if cell.cell_type == "code"]),
        "script": (project.html / "notebooks" / f"{name}.py").read_text(encoding="utf-8"),
        "calculator": str(fits["href"]),
    }


def wrong(texts: dict[str, str], which: int) -> dict[str, str]:
    """Return the places that do not say what they should."""
    return {place: text for place, text in texts.items() if SAYS[place][which] not in text}


def rows(project: Project) -> dict[str, str]:
    """Return what the page of all claims says in the row of each topic, and what the command finds."""
    html = BeautifulSoup((project.html / "claims.html").read_text(encoding="utf-8"), "html.parser")
    printed = json.loads(
        project.python(
            "import json; from gpuguide import claims; "
            "print(json.dumps({o.claim.topic: [o.ok, o.detail, claims.right(o.claim)] for o in claims.check()}))"
        )
    )
    shown = {topic: words(html.find(id=f"claim-{topic}-copies-are-fast")) for topic in PAGES.values()}
    return {topic: f"{text} {printed[topic]}" for topic, text in shown.items()}


@pytest.mark.slow
def test_a_page_that_names_another_gpu_speaks_of_it_everywhere_and_the_others_stay(project: Project) -> None:
    write_pages(project)
    first = project.build(own=True)
    assert first.status == 0, first.output
    for name in PAGES:
        assert wrong(said(project, name), 0) == {}
        assert "GPUGUIDE_GPU" not in said(project, name)["script"]
    before = rows(project)
    assert all("On an H200 with" in text for text in before.values())

    write_pages(project, speed=ANOTHER[0])
    second = project.build(own=True)
    assert (second.status, second.executed) == (0, {"00-copies"}), second.output
    assert {"tutorials/00-copies", "claims", "status"} <= second.read
    assert "tutorials/01-sizes" not in second.read or said(project, "01-sizes")
    assert wrong(said(project, "00-copies"), 1) == {}
    assert wrong(said(project, "01-sizes"), 0) == {}
    after = rows(project)
    assert "On an H100 with" in after["speed"]
    assert "H200" not in after["speed"]
    assert after["sizes"] == before["sizes"]
    assert "We measured an H200" in (project.html / "index.html").read_text(encoding="utf-8")

    status = BeautifulSoup((project.html / "status.html").read_text(encoding="utf-8"), "html.parser")
    assert "Text speaks of those of NVIDIA H100 80GB HBM3, NVIDIA H200 and of a processor" in words(status)
    read = {page["page"]: page["records"] for page in json.loads((project.html / "status.json").read_text())["pages"]}
    assert read["tutorials/00-copies"] == [[ANOTHER[0], "ceilings"]]
    assert read["tutorials/01-sizes"] == [[USUAL[0], "ceilings"]]

    third = project.build(own=True)
    assert (third.status, third.executed, third.read) == (0, set(), set())


@pytest.mark.slow
def test_pages_that_name_no_gpu_follow_the_setting(project: Project) -> None:
    speeds = []
    try:
        for which, (device, short) in enumerate(((USUAL[0], "H200"), (ANOTHER[0], "H100"))):
            write_pages(project)
            project.reference(device)
            build = project.build(own=True)
            assert build.status == 0, build.output
            for name in PAGES:
                texts = said(project, name)
                del texts["calculator"]  # it is asked for the GPU of a page only if that is not the default
                assert wrong(texts, which) == {}
                assert "faster than a host does. See" in texts["page"]
                for text in (texts["notebook"], texts["script"], texts["page"]):
                    assert "{gpu}" not in text
                    assert "host does |" not in text
            assert f"time on our {short}" in (project.html / "records.html").read_text(encoding="utf-8")
            speeds.append(float(re.search(r"([\d.]+) TB/s", texts["number"])[1]))  # type: ignore[index]
    finally:
        project.reference(USUAL[0])
    assert speeds[0] == pytest.approx(2 * speeds[1], rel=0.01)


FALSE = '{holds}`slower than a host | measurement("ceilings/copy:bandwidth").p75 < 1e9`'


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
            assert re.search(rf"wrong\.md:{line + 2}: ERROR: .*'fast'", build.output)
            assert re.search(rf"wrong\.md:{line + 4}: ERROR: .*'shrt'", build.output)
    finally:
        (project.root / "wrong.md").unlink()


@pytest.mark.slow
def test_a_setting_without_records_says_which_there_are(project: Project) -> None:
    project.reference("nvidia-b200")
    try:
        build = project.build()
    finally:
        project.reference(USUAL[0])
    assert build.status != 0
    assert "nvidia-b200" in build.output
    assert f"There are records of {ANOTHER[0]}, {USUAL[0]}." in build.output


@pytest.mark.slow
def test_a_download_takes_the_records_of_its_page(project: Project, tmp_path: Path) -> None:
    write_pages(project, speed=ANOTHER[0])
    assert project.build().status == 0
    printed = {}
    for name in PAGES:
        script = project.html / "notebooks" / f"{name}.py"
        run = f"import runpy; runpy.run_path({str(script)!r})"
        printed[name] = project.python(run, where=tmp_path, MPLBACKEND="Agg")
    assert "computed for NVIDIA H100 80GB HBM3" in printed["00-copies"]
    assert "computed for NVIDIA H200" in printed["01-sizes"]


@pytest.mark.slow
def test_a_changed_gpu_stops_the_build_where_a_sentence_does_not_hold(project: Project) -> None:
    slow = 'It is {holds}`slow | measurement("ceilings/copy:bandwidth").p75 < 4e12`.'
    more = "You will wait.\n\n" + slow
    try:
        project.page("tutorials/02-slow", more, benchmarks="ceilings", gpu=ANOTHER[0])
        build = project.build()
        assert build.status == 0, build.output
        project.page("tutorials/02-slow", more, benchmarks="ceilings")
        build = project.build()
        assert build.status != 0
        line = project.line_of("tutorials/02-slow", "It is")
        assert f"02-slow.md:{line}: ERROR: 'slow' does not hold on NVIDIA H200" in build.output
    finally:
        (project.root / "tutorials" / "02-slow.md").unlink()


# --- a page never mixes two GPUs ---------------------------------------------------------------------------


@pytest.mark.slow
def test_each_sentence_that_mixes_gpus_is_named(project: Project) -> None:
    write_pages(project, speed=ANOTHER[0])
    body = f"""
A number: {{measured}}`ceilings/copy:bandwidth device={USUAL[0]}`.

A sentence {{holds}}`is fast | measurement("ceilings/copy:bandwidth device={USUAL[0]}").p25 > 1e12`.

Another page's number: {{glue:text}}`01-sizes.md::rate:s`.

```{{claims}} sizes
```
"""
    project.page("tutorials/02-mixed", body, benchmarks="ceilings", gpu=ANOTHER[0])
    try:
        for _ in range(2):
            build = project.build()
            assert build.status != 0
            for start_of_line in ("A number", "A sentence", "Another page", "```{claims}"):
                line = project.line_of("tutorials/02-mixed", start_of_line)
                found = [text for text in build.output.splitlines() if f"02-mixed.md:{line}: ERROR" in text]
                assert found, f"{start_of_line}\n{build.output}"
                assert "H200" in found[0] or USUAL[0] in found[0]
    finally:
        (project.root / "tutorials" / "02-mixed.md").unlink()


@pytest.mark.slow
@pytest.mark.parametrize("device", [f'"{USUAL[0]}"', f'"-".join({USUAL[0].split("-")})'])
def test_a_cell_that_asks_for_another_gpu_is_named(project: Project, device: str) -> None:
    read = f'from gpuguide.measure import store\n\nstore.load_published("ceilings", device={device})'
    project.page("tutorials/02-mixed", cell(read), benchmarks="ceilings", gpu=ANOTHER[0])
    try:
        build = project.build()
        assert build.status != 0
        line = project.line_of("tutorials/02-mixed", "store.load_published")
        assert re.search(rf"02-mixed\.md:{line}: .*speaks of {ANOTHER[0]}, and {USUAL[0]} is another", build.output)
    finally:
        (project.root / "tutorials" / "02-mixed.md").unlink()


# --- bad input ---------------------------------------------------------------------------------------------


def fault(project: Project, **page: str) -> Build:
    """Build with one page more, which must fail."""
    project.page("tutorials/02-more", "Text.", **page)
    try:
        build = project.build()
    finally:
        (project.root / "tutorials" / "02-more.md").unlink()
    assert build.status != 0, build.output
    return build


@pytest.mark.slow
def test_a_page_names_one_gpu_with_the_records_that_it_declares(project: Project) -> None:
    write_pages(project)
    project.record("copy-size", device=USUAL)
    for page, says in (
        ({"gpu": "nvidia-b200"}, ["nvidia-b200", f"There are records of {ANOTHER[0]}, {USUAL[0]}"]),
        ({"gpu": f"[{USUAL[0]}, {ANOTHER[0]}]"}, [USUAL[0], ANOTHER[0], "Name one device"]),
        ({"gpu": f"2x-{USUAL[0]}"}, [f"2x-{USUAL[0]}", "Name one device"]),
        ({"gpu": "cpu"}, ["names a processor"]),
        ({"gpu": ANOTHER[0], "benchmarks": "copy-size"}, ["copy-size", ANOTHER[0], f"only on {USUAL[0]}"]),
        (
            {"gpu": ANOTHER[0], "topics": "sizes"},
            ["'sizes'", "01-sizes.md:", "02-more.md:", f"speaks of {USUAL[0]}", f"of {ANOTHER[0]}"],
        ),
    ):
        build = fault(project, **page)
        told = next(text for text in build.output.splitlines() if "02-more.md:" in text)
        assert not [text for text in says if text not in told], build.output
