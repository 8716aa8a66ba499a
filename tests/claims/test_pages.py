"""What pages say of their GPU decides where the rows of their topics are checked, and which records must be fresh."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import synthetic_records as synthetic

from gpuguide import claims
from gpuguide.claims import pages, quoted
from gpuguide.errors import GpuguideError
from gpuguide.measure import folders, page_declaration, page_gpu, records, reference_gpu, store
from gpuguide.plotting import other_gpus

H200, H100 = synthetic.OTHER[0], synthetic.PUBLISHED[0]
LEDGER = """
[topics]
speed = "How fast"
sizes = "How large"
[sources]
"""
ROW = """
[[claims]]
id = "{topic}-row"
topic = "{topic}"
note = "000"
claim = "A copy runs at over 2.5 TB/s."
verdict = "true"
right = "On {{gpu('a short')}}: {{measurement('ceilings/copy:bandwidth')}}, of {{datasheet('reference', 'memory')}}."
kind = "measured"
predicate = "measurement('ceilings/copy:bandwidth').p25 > 2.5e12"
"""
Write = Callable[..., None]


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """A repository without pages, with ceilings and copies of two GPUs and a processor; the H200 is the default."""
    folder = tmp_path / "records"
    for device, slower in ((synthetic.OTHER, 0.5), (synthetic.PUBLISHED, 1.0), (("cpu", "A processor"), 1.0)):
        synthetic.write_all(folder, device, slower)
    (folder / "reference.toml").write_text(f'device = "{H200}"')
    monkeypatch.setattr(folders, "published_folder", lambda: folder)
    monkeypatch.setattr(reference_gpu, "settings_file", lambda: folder / "reference.toml")
    monkeypatch.setattr(pages, "repository", lambda: tmp_path)
    load = claims.load
    monkeypatch.setattr("gpuguide.claims.reading.load", lambda: load(tmp_path / "claims.toml"))

    def write(name: str, own: str) -> None:
        path = tmp_path / f"{name}.md"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"---\ngpuguide:\n{own}---\n\n# Page\n", encoding="utf-8")

    return write


def named(topics: str = "", gpu: str = "", benchmarks: str = "ceilings") -> str:
    """Return an entry of a front matter."""
    lines = [f"  topics: [{topics}]", f"  benchmarks: [{benchmarks}]", *([f"  gpu: {gpu}"] if gpu else [])]
    return "".join(f"{line}\n" for line in lines)


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    """One row of each of two topics."""
    path = tmp_path / "claims.toml"
    path.write_text(LEDGER + ROW.format(topic="speed") + ROW.format(topic="sizes"), encoding="utf-8")
    return path


def test_the_rows_of_a_topic_are_checked_on_the_gpu_of_its_pages(page: Write, ledger: Path) -> None:
    page("tutorials/00-speed", named("speed"))
    page("tutorials/01-sizes", named("sizes"))
    assert [outcome.ok for outcome in claims.check(claims.load(ledger))] == [True, True]
    page("tutorials/00-speed", named("speed", H100))
    speed, sizes = claims.load(ledger)
    assert (speed.gpu, sizes.gpu) == (H100, H200)
    assert claims.right(speed).startswith("On an H100: 3.0")
    assert claims.right(speed).endswith("of 74.5 GiB.")
    assert "NVIDIA H100 80GB HBM3" in claims.how_we_know(speed)
    assert claims.right(sizes).startswith("On an H200: 6.1")
    assert all("H200" in outcome.detail or outcome.ok for outcome in claims.check([speed, sizes]))
    assert reference_gpu.slug() == H200, "what is asked for afterwards is the default again"


def test_a_row_that_does_not_hold_on_the_gpu_of_its_page_fails(page: Write, ledger: Path) -> None:
    ledger.write_text(ledger.read_text().replace("> 2.5e12", "> 5e12"))
    page("tutorials/00-speed", named("speed", H100))
    assert [outcome.ok for outcome in claims.check(claims.load(ledger))] == [False, True]


def test_two_gpus_on_one_topic_name_both_pages_and_the_topic(page: Write, ledger: Path) -> None:
    page("tutorials/00-speed", named("speed"))
    page("tutorials/01-more", named("sizes, speed", H100))
    with pytest.raises(GpuguideError) as caught:
        claims.load(ledger)
    wanted = ["'speed'", "00-speed.md:3 speaks of", H200, "01-more.md:5 of", H100]
    assert not [text for text in wanted if text not in str(caught.value)], caught.value
    page("tutorials/00-speed", named("speed", H100))
    assert pages.gpus_of_topics() == {"speed": H100, "sizes": H100}


def test_a_page_without_measurements_fits_any_gpu(page: Write) -> None:
    page("tutorials/00-words", named("speed", benchmarks=""))
    page("tutorials/01-more", named("speed", H100))
    assert pages.gpus_of_topics() == {"speed": H100}


@pytest.mark.parametrize(
    ("gpu", "says"),
    [
        ("nvidia-b200", ["'nvidia-b200'", f"There are records of {H100}, {H200}"]),
        (f"[{H200}, {H100}]", [H200, H100, "Name one device"]),
        (f"2x-{H200}", [f"'2x-{H200}'", "Name one device"]),
        ("cpu", ["a processor"]),
        ("7", ["7", "Name one device"]),
    ],
)
def test_a_page_that_names_no_gpu_with_records(page: Write, gpu: str, says: list[str]) -> None:
    page("tutorials/00-speed", named("speed", gpu))
    with pytest.raises(GpuguideError) as caught:
        pages.gpus_of_topics()
    assert not [text for text in ["00-speed.md:5", *says] if text not in str(caught.value)], caught.value


def places(records: list[records.Record]) -> set[tuple[str, str]]:
    return {(record.device, record.benchmark) for record in records}


def test_what_must_be_fresh_is_what_pages_declare_on_their_own_gpu(page: Write, ledger: Path) -> None:
    every = store.load_all_published()
    assert places(quoted.select_quoted(every)) == {(H200, name) for name in synthetic.BENCHMARKS} | {
        ("cpu", name) for name in synthetic.BENCHMARKS
    }
    page("tutorials/00-speed", named("speed", H100, "copy-size"))
    page("tutorials/01-sizes", named("sizes", benchmarks="matmul-size"))
    of_gpus = {place for place in places(quoted.select_quoted(every)) if place[0] != "cpu"}
    assert of_gpus == {
        (H100, "copy-size"),
        (H200, "matmul-size"),
        (H100, "ceilings"),  # a row of the topic speed reads them
        (H200, "ceilings"),
        (H200, "transfer-size"),  # declared nowhere
        (H200, "timing-mistakes"),
    }


def test_other_words_in_a_front_matter_name_no_gpu(page: Write, tmp_path: Path) -> None:
    page("tutorials/00-speed", named("speed") + "  gpu-extras: [cuda12]\n")
    assert pages.all_pages() == []
    (tmp_path / "README.md").write_text("# gpu: none\n")
    assert pages.gpus_of_topics() == {}


def test_an_installation_without_pages_speaks_of_the_default(page: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    page("tutorials/00-speed", named("speed", H100))
    monkeypatch.setattr(pages, "repository", lambda: None)
    assert pages.gpus_of_topics() == {}


# --- the question that everything asks ---------------------------------------------------------------------


def test_a_context_answers_before_the_environment_and_that_before_the_setting(
    page: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert reference_gpu.slug() == H200
    monkeypatch.setenv(page_gpu.VARIABLE, H100)
    assert (reference_gpu.slug(), reference_gpu.word("a short")) == (H100, "an H100")
    assert store.load_published("ceilings").device == H100
    with page_gpu.use_current_gpu("", "a page"):
        assert reference_gpu.slug() == H200
        with page_gpu.use_current_gpu(H100, "a page"):
            assert store.load_published("ceilings").device == H100
        assert store.load_published("ceilings").device == H200
    for device, beside in ((H100, H200), (H200, H100)):
        with page_gpu.use_current_gpu(device, "a page"):
            found = other_gpus.find_compared_records(store.load_published("ceilings"))
            assert [record.device for record in found] == [beside], "the second curve is that of the other GPU"
    monkeypatch.setenv(page_gpu.VARIABLE, "nvidia-b200")
    with pytest.raises(GpuguideError, match=rf"{page_gpu.VARIABLE} names the device 'nvidia-b200', of which"):
        store.load_published("ceilings")
    monkeypatch.setenv(page_gpu.VARIABLE, "2x-nvidia-h200")
    with pytest.raises(GpuguideError, match=rf"{page_gpu.VARIABLE} names '2x-nvidia-h200'"):
        store.load_published("ceilings")


def test_a_page_that_is_built_reads_its_own_gpu_and_a_processor(page: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(page_declaration.DECLARED_VARIABLE, "ceilings")
    with page_gpu.use_current_gpu(H100, "a page"):
        assert [store.load_published("ceilings", device).device for device in (None, H100, "cpu")] == [
            H100,
            H100,
            "cpu",
        ]
        with pytest.raises(GpuguideError, match=rf"speaks of {H100}, and {H200} is another GPU"):
            store.load_published("ceilings", H200)
