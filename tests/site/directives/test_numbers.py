"""The roles for measured numbers: what they show, and what happens when they name nothing or too much."""

from __future__ import annotations

from dataclasses import replace

import pytest
import synthetic_records as synthetic
from bs4 import BeautifulSoup
from small_site import Project, start

from gpuguide.measure import citation, records
from gpuguide.site.directives import numbers

pytestmark = pytest.mark.random_order(disabled=True)  # later tests change the site that all of them share

FAULTS = {
    "{measured}`copysize/copy:bandwidth`": "copy-size",
    "{measured}`copy-size/copi:bandwidth working_set=16384`": "contender",
    "{measured}`copy-size/copy:bandwidth`": "matches 18 cases",
    "{measured}`copy-size/copy:speed working_set=16384`": "metric",
    "{ceiling}`fp4`": "no ceiling",
    "{measured}`ceilings copy`": "is not a reference",
    "{ratio}`ceilings/copy:bandwidth`": "names one contender",
    "{measured}`ceilings/copy:bandwidth device=nvidia-h900`": "nvidia-h900",
    "{measured}`ceilings/copy:bandwidth device=nvidia-h200`": "NVIDIA H200 is drawn in figures only",
}


TREE = "\n\n```{toctree}\nrecords\n```"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    made = start(tmp_path_factory.mktemp("site"))
    for name in ("ceilings", "copy-size", "timing-mistakes"):
        made.record(name)
    made.record("ceilings", device=synthetic.OTHER)
    made.page("records", "```{records}\n```", runs=False)
    return made


@pytest.mark.slow
def test_every_fault_is_reported_with_its_line_by_every_build(project: Project) -> None:
    project.page("index", "\n\n".join(FAULTS) + TREE, runs=False)
    for _ in range(2):
        build = project.build()
        assert build.status != 0
        for role, message in FAULTS.items():
            line = project.line_of("index", role)
            reported = [text for text in build.output.splitlines() if f"index.md:{line}:" in text]
            assert reported, f"{role} is not reported at line {line}:\n{build.output}"
            assert message in reported[0]


@pytest.mark.parametrize("turns", [[5] * 4, []], ids=["turns", "no turns"])
def test_a_ratio_says_where_its_samples_are_not_paired_by_turns(turns: list[int]) -> None:
    cases = [
        replace(case, measured={"time": records.metric("s", case.measured["time"].samples, turns)})
        for case in synthetic.cases_of("timing-mistakes")
    ]
    record = synthetic.record("timing-mistakes", cases, synthetic.PUBLISHED)
    text = numbers.provenance(citation.ratio("timing-mistakes/zeros/right:time shape=square", record))
    said = "samples are paired in their order, because the record does not say which turn a sample is of"
    assert (said in text) == (not turns)


@pytest.mark.slow
def test_a_number_shows_its_value_and_leads_to_its_record(project: Project) -> None:
    copy = "{measured}`ceilings/copy:bandwidth`"
    zeros = "{ratio}`timing-mistakes/zeros/right:throughput shape=square`"
    project.page("index", f"{copy} and {zeros}{TREE}", runs=False)
    build = project.build()
    assert build.status == 0, build.output
    page = BeautifulSoup((project.html / "index.html").read_text(encoding="utf-8"), "html.parser")
    bandwidth, speed = page.select("a.gg-number")
    assert bandwidth.text.endswith(" TB/s")
    assert bandwidth["href"] == "records.html#record-nvidia-h100-80gb-hbm3-ceilings"
    for part in ("Median of 20 samples", "NVIDIA H100 80GB HBM3", "2026-01-02"):
        assert part in bandwidth["title"]
    assert float(speed.text) == pytest.approx(1.25, abs=0.03)
    target = BeautifulSoup((project.html / "records.html").read_text(encoding="utf-8"), "html.parser")
    assert target.find(id="record-nvidia-h100-80gb-hbm3-ceilings") is not None

    downloads = {link.text: project.html / link["href"] for link in target.select("li a.reference")[:3]}
    assert list(downloads) == ["JSON", "CSV", "Arrow"]
    assert all(path.is_file() for path in downloads.values())
    header, *rows = downloads["CSV"].read_text(encoding="utf-8").splitlines()
    assert header.startswith("device,benchmark,contender,case,metric,unit,n,p5")

    import pyarrow as pa

    with pa.OSFile(str(downloads["Arrow"])) as file:
        table = pa.ipc.open_file(file).read_all()
    assert table.num_rows == len(rows)
    assert len(table["samples"][0].as_py()) == table["n"][0].as_py() == 20
    assert table["turns"][0].as_py() == [5, 5, 5, 5]


@pytest.mark.slow
def test_a_stale_number_says_so(project: Project) -> None:
    project.record("ceilings", stale=True)
    project.page("index", "{measured}`ceilings/copy:bandwidth`" + TREE, runs=False)
    assert project.build().status == 0
    page = BeautifulSoup((project.html / "index.html").read_text(encoding="utf-8"), "html.parser")
    number = page.select_one(".gg-number")
    assert number is not None
    assert number.select_one(".gg-stale") is not None
    assert "stale" in number["title"]


@pytest.mark.slow
def test_a_ceiling_shows_the_best_of_the_records_and_which_it_is(project: Project) -> None:
    project.page(
        "index", "{ceiling}`copy`, {ceiling}`read`, {ceiling}`bf16` and {ceiling}`capacity`" + TREE, runs=False
    )
    build = project.build()
    assert build.status == 0, build.output
    page = BeautifulSoup((project.html / "index.html").read_text(encoding="utf-8"), "html.parser")
    copy, read, product, capacity = page.select(".gg-number")
    assert copy.text.endswith(" TB/s")
    assert copy["href"] in ("records.html#record-nvidia-h100-80gb-hbm3-" + name for name in ("ceilings", "copy-size"))
    assert "copy:bandwidth" in copy["title"]
    assert "NVIDIA H100 80GB HBM3" in copy["title"]
    assert read.text == "3.35 TB/s", "nothing that only reads was measured, so the printed figure stands"
    assert "record" not in str(read.get("href"))
    assert "throughput" in product["title"]
    assert capacity.text.endswith(" GiB")
