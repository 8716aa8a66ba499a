"""Figures from records: what stands in them, in each rendition."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import synthetic_records as synthetic

from gpuguide import plotting
from gpuguide.errors import GpuguideError
from gpuguide.measure import records, store
from gpuguide.plotting import axes, figure, other_gpus


@pytest.fixture(autouse=True)
def reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """The synthetic records are of the GPU that prose speaks of."""
    monkeypatch.setattr(store, "reference_device", lambda: synthetic.PUBLISHED[0])


@pytest.fixture
def record() -> records.Record:
    return synthetic.record("matmul-size", synthetic.cases_of("matmul-size"), synthetic.PUBLISHED)


@pytest.fixture
def site_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUGUIDE_SITE_BUILD", "1")


def drawing(record: records.Record) -> figure.Draw:
    def draw(canvas, theme):
        ax = canvas.subplots()
        plotting.curves(ax, record, x="size", metric="throughput", contenders=["matmul-bf16", "matmul-fp32"])
        plotting.ceiling(ax, 7e14, "measured ceiling")
        plotting.log_axis(ax.xaxis, "count", "rows and columns")
        plotting.log_axis(ax.yaxis, "FLOP/s", "throughput")

    return draw


def test_in_jupyter_a_figure_is_a_png_with_alt_text(record: records.Record, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPUGUIDE_SITE_BUILD", raising=False)
    bundle, metadata = plotting.show(drawing(record), alt="Two curves.", caption="Products.")._repr_mimebundle_()
    assert set(bundle) == {"image/png", "text/plain"}
    assert metadata["image/png"]["alt"] == "Two curves."
    assert bundle["text/plain"].startswith("Two curves.\nProducts.\nNVIDIA H100")


@pytest.mark.usefixtures("site_build")
def test_on_the_site_a_figure_is_two_drawings_with_real_text(record: records.Record) -> None:
    shown = plotting.show(drawing(record), alt="Two curves.", caption="Products.")
    bundle, _ = shown._repr_mimebundle_()
    content = bundle[figure.MIME]
    assert set(content["svg"]) == {"light", "dark"}
    for svg in content["svg"].values():
        texts = set(re.findall(r"<text[^>]*>([^<]+)</text>", svg))
        assert {"matmul-bf16", "measured ceiling", "throughput", "100 TFLOP/s", "1024"} <= texts
        assert "<dc:date>" not in svg
    assert plotting.LIGHT.series["orange"] in content["svg"]["light"]
    assert plotting.DARK.series["orange"] in content["svg"]["dark"]
    assert content["stamps"] == [record.runs[0].stamp() + " · n = 20"]


@pytest.mark.usefixtures("site_build")
def test_recoloured_for_the_dark_scheme_a_figure_is_as_if_drawn_in_it(record: records.Record) -> None:
    shown = plotting.show(drawing(record), alt="Two curves.", caption="Products.")
    drawn = figure._svg(drawing(record), plotting.DARK, (5.8, 3.7))
    assert shown.svg is not None
    assert with_numbered_ids(shown.svg["dark"]) == with_numbered_ids(drawn)


def with_numbered_ids(svg: str) -> str:
    """Return an SVG whose ids say their order only: matplotlib makes them of the colours, among others."""
    order: dict[str, str] = {}
    return re.sub(r"\b[a-z][0-9a-f]{10}\b", lambda name: order.setdefault(name[0], f"id{len(order)}"), svg)


@pytest.mark.usefixtures("site_build")
def test_the_same_figure_is_the_same_bytes(record: records.Record) -> None:
    first, second = (plotting.show(drawing(record), alt="Two curves.", caption="Products.") for _ in range(2))
    assert first == second


@pytest.mark.usefixtures("site_build")
def test_a_stale_record_says_so_in_legend_and_stamp() -> None:
    stale = synthetic.record("matmul-size", synthetic.cases_of("matmul-size"), synthetic.PUBLISHED, stale=True)
    shown = plotting.show(drawing(stale), alt="Two curves.", caption="Products.")
    assert shown.svg is not None
    assert ">H100 (stale)<" in shown.svg["light"]
    assert "stale" in shown.stamps[0]


@pytest.mark.usefixtures("site_build")
def test_a_readers_own_record_is_dashed_and_named(
    record: records.Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synthetic.write_all(tmp_path, synthetic.OWN, slower=3.0)
    plain = plotting.show(drawing(record), alt="Two curves.", caption="Products.")
    monkeypatch.setenv("GPUGUIDE_RECORDS", str(tmp_path))
    shown = plotting.show(drawing(record), alt="Two curves.", caption="Products.")
    assert shown.svg is not None
    assert plain.svg is not None
    assert ">RTX 4090 (yours)<" in shown.svg["light"]
    assert shown.alt == "Two curves. Dashed and hollow: the same, measured by you on NVIDIA GeForce RTX 4090."
    assert "RTX 4090" not in plain.svg["light"]
    assert shown.svg["light"].count("stroke-dasharray") > plain.svg["light"].count("stroke-dasharray")
    assert [stamp.split(" · ")[0] for stamp in shown.stamps] == ["NVIDIA H100 80GB HBM3", "NVIDIA GeForce RTX 4090"]


@pytest.fixture
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Records of the reference GPU and of a processor."""
    monkeypatch.setattr(store, "published_folder", lambda: tmp_path)
    for device in (synthetic.PUBLISHED, ("cpu", "A processor")):
        synthetic.write_all(tmp_path, device)
    return tmp_path


def publish(folder: Path, benchmark: str, device: tuple[str, str], *, stale: bool = False, slower: float = 0.5) -> None:
    """Publish a record of another device."""
    made = synthetic.record(benchmark, synthetic.cases_of(benchmark, slower), device, stale=stale)
    records.write(made, folder / device[0] / f"{benchmark}.json")


def shown_curves(benchmark: str = "matmul-size", **options: Any) -> plotting.Figure:
    def draw(canvas, theme):
        plotting.curves(canvas.subplots(), benchmark, x="size", metric="throughput", **options)

    return plotting.show(draw, alt="Curves.", caption="Products.")


def lines_drawn(shown: plotting.Figure) -> list[str]:
    """The strokes of a figure's curves that are thin."""
    assert shown.svg is not None
    return re.findall(r"stroke: (#[0-9a-f]{6}); stroke-opacity: [\d.]+; stroke-width: 1\.1", shown.svg["light"])


@pytest.mark.usefixtures("site_build")
def test_another_published_gpu_is_drawn_thin_in_the_contenders_colour(published: Path) -> None:
    alone = shown_curves(contenders=["matmul-bf16", "matmul-fp32"])
    publish(published, "matmul-size", synthetic.OTHER)
    publish(published, "copy-size", synthetic.OWN)
    both = shown_curves(contenders=["matmul-bf16", "matmul-fp32"])
    colours = {plotting.LIGHT.series["orange"], plotting.LIGHT.series["pink"]}
    assert (lines_drawn(alone), colours <= set(lines_drawn(both))) == ([], True)
    assert both.svg is not None
    assert ">H200<" in both.svg["light"]
    assert (both.alt, both.caption) == ("Curves. Thin: NVIDIA H200.", "Products. Thin: NVIDIA H200.")
    assert [stamp.split(" · ")[0] for stamp in both.stamps] == ["NVIDIA H100 80GB HBM3", "NVIDIA H200"]
    assert not [stamp for stamp in both.stamps if "code" in stamp]


@pytest.mark.usefixtures("site_build")
def test_an_old_record_of_another_gpu_is_pale_and_names_the_day_of_its_code(published: Path) -> None:
    publish(published, "matmul-size", synthetic.OTHER, stale=True)
    shown = shown_curves(contenders=["matmul-bf16"])
    assert shown.caption == "Products. Thin and pale: NVIDIA H200, measured with the code of 2026-01-02."
    assert shown.stamps[1].endswith("measured with the code of 2026-01-02 · n = 20")
    assert shown.svg is not None
    assert "stroke-opacity: 0.45" in shown.svg["light"]
    assert ">H200 (older code)<" in shown.svg["light"]
    assert "stale" not in shown.svg["light"] + "".join(shown.stamps)


@pytest.mark.usefixtures("site_build")
def test_of_many_contenders_one_is_drawn_for_another_gpu(published: Path) -> None:
    publish(published, "matmul-size", synthetic.OTHER)
    assert len(set(lines_drawn(shown_curves())) - {plotting.LIGHT.text}) == 1
    chosen = shown_curves(beside=["matmul-fp8", "matmul-fp16"])
    colours = {plotting.LIGHT.series[name] for name in ("violet", "blue")}
    assert set(lines_drawn(chosen)) - {plotting.LIGHT.text} == colours
    assert other_gpus.contenders(["torch", "gpuguide-triton", "fa4"]) == ["gpuguide-triton"]


def test_the_freshest_and_newest_other_gpu_is_drawn_and_never_a_processor(published: Path) -> None:
    record = store.published("matmul-size")
    assert other_gpus.beside(record) == []
    publish(published, "matmul-size", synthetic.OWN, stale=True)
    publish(published, "matmul-size", ("2x-nvidia-h200", "NVIDIA H200"))
    assert [other.device for other in other_gpus.beside(record)] == [synthetic.OWN[0]]
    publish(published, "matmul-size", synthetic.OTHER)
    assert [other.device for other in other_gpus.beside(record)] == [synthetic.OTHER[0]]
    assert other_gpus.beside(store.published("matmul-size", "cpu")) == []
    assert other_gpus.beside(store.published("matmul-size", synthetic.OTHER[0])) == []


def test_drawings_by_hand_ask_for_the_other_gpu(published: Path) -> None:
    publish(published, "matmul-size", synthetic.OTHER)
    assert len(plotting.published_and_mine("matmul-size")) == 1
    assert len(plotting.published_and_mine("matmul-size", others=True)) == 2


@pytest.mark.usefixtures("site_build")
def test_bars_of_another_gpu_are_thin(published: Path) -> None:
    publish(published, "timing-mistakes", synthetic.OTHER)

    def draw(canvas, theme):
        ax = canvas.subplots()
        plotting.bars(ax, "timing-mistakes", metric="throughput", contenders=["right", "zeros"], shape="square")
        heights.update(round(patch.get_height(), 2) for patch in ax.patches)

    heights: set[float] = set()
    assert plotting.show(draw, alt="Bars.", caption="Products.").caption == "Products. Thin: NVIDIA H200."
    assert heights == {0.66, 0.25}


def test_a_stamp_names_the_libraries_of_the_contenders_that_are_drawn(published: Path) -> None:
    record = store.published("matmul-size")
    called = {"matmul-bf16": ("cublas",), "matmul-fp8": ("liger-kernel",)}
    cases = tuple(replace(case, libraries=called.get(case.contender, ())) for case in record.cases)
    run = replace(record.runs[0], versions={"torch": "2.11.0", "cublas": "13.1.0", "liger-kernel": "0.6.4"})
    made = replace(record, cases=cases, runs=(run,))

    def stamps(*contenders: str) -> str:
        def draw(canvas, theme):
            plotting.curves(canvas.subplots(), made, x="size", metric="throughput", contenders=contenders)

        return "".join(plotting.show(draw, alt="A line.", caption="Products.", records=[made]).stamps)

    assert "torch 2.11.0 · cuBLAS 13.1.0 · 2026-01-02" in stamps("matmul-bf16", "matmul-fp32")
    assert "Liger Kernel 0.6.4" in stamps("matmul-fp8")
    assert "cuBLAS" not in stamps("matmul-fp8")


@pytest.mark.usefixtures("site_build")
def test_bars_carry_their_values_in_words() -> None:
    made = synthetic.record("timing-mistakes", synthetic.cases_of("timing-mistakes"), synthetic.PUBLISHED)

    def draw(canvas, theme):
        ax = canvas.subplots()
        plotting.bars(ax, made, metric="throughput", contenders=["right", "zeros"], shape="square")

    shown = plotting.show(draw, alt="Two bars.", caption="Zeros are faster.")
    assert shown.svg is not None
    assert len(re.findall(r">\d+ TFLOP/s<", shown.svg["light"])) >= 2
    assert ">zeros<" in shown.svg["light"]


@pytest.mark.usefixtures("site_build")
def test_bars_of_a_reader_who_lacks_a_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    published = synthetic.record("matmul-size", synthetic.cases_of("matmul-size"), synthetic.PUBLISHED)
    smaller = [case for case in synthetic.cases_of("matmul-size", 3.0) if case.keys["size"] != 16384]
    own = synthetic.record("matmul-size", smaller, synthetic.OWN)
    records.write(own, tmp_path / own.device / "matmul-size.json")
    monkeypatch.setenv("GPUGUIDE_RECORDS", str(tmp_path))

    def shown(size: int) -> str:
        def draw(canvas, theme):
            plotting.bars(canvas.subplots(), published, metric="throughput", contenders=["matmul-bf16"], size=size)

        made = plotting.show(draw, alt="A bar.", caption="Products.")
        assert made.svg is not None
        return made.svg["light"]

    assert "RTX 4090 (yours)" in shown(8192)
    assert "RTX 4090 (yours)" not in shown(16384)


def test_a_figure_leaves_out_the_reader_who_lacks_what_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    published = synthetic.record("ceilings", synthetic.cases_of("ceilings"), synthetic.PUBLISHED)
    without = [case for case in synthetic.cases_of("ceilings", 3.0) if case.contender != "matmul-fp8"]
    own = synthetic.record("ceilings", without, synthetic.OWN)
    records.write(own, tmp_path / own.device / "ceilings.json")
    monkeypatch.setenv("GPUGUIDE_RECORDS", str(tmp_path))
    assert len(plotting.published_and_mine(published, "copy", "launch")) == 2
    assert plotting.published_and_mine(published, "copy", "matmul-fp8") == [published]


def test_a_readers_own_h100_is_told_from_ours(
    record: records.Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synthetic.write_all(tmp_path, synthetic.PUBLISHED, slower=1.1)
    monkeypatch.setenv("GPUGUIDE_RECORDS", str(tmp_path))
    names = [plotting.device_label(each) for each in plotting.published_and_mine(record)]
    assert names == ["H100", "H100 80GB HBM3 (yours)"]


def test_a_roofline_bends_at_the_ridge() -> None:
    from matplotlib.figure import Figure

    ax = Figure().subplots()
    plotting.roofline(ax, bandwidth=2e12, throughput=4e14, label="bf16", contender="matmul-bf16")
    xs, ys = ax.lines[0].get_data()
    assert list(xs) == [0.1, 200.0, 10_000.0]
    assert list(ys) == [2e11, 4e14, 4e14]


@pytest.mark.parametrize("missing", ["alt", "caption"])
def test_a_figure_without_words_is_refused(missing: str) -> None:
    words = {"alt": "A line.", "caption": "Lines."} | {missing: " "}
    with pytest.raises(GpuguideError, match=missing):
        plotting.show(lambda canvas, theme: None, **words)


def test_a_curve_that_does_not_exist_is_named(record: records.Record) -> None:
    def draw(canvas, theme):
        plotting.curves(canvas.subplots(), record, x="size", metric="throughput", contenders=["copy"])

    with pytest.raises(GpuguideError, match="'copy'"):
        plotting.show(draw, alt="A line.", caption="Lines.")


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (3e12, "B/s", "3 TB/s"),
        (2.5e12, "B/s", "2.5 TB/s"),
        (1e-5, "s", "10 µs"),
        (2**20, "B", "1 MiB"),
        (0, "s", "0"),
        (100, "1", "100"),
        (0.1, "1", "0.1"),
    ],
)
def test_ticks_carry_units_and_no_idle_zeros(value: float, unit: str, text: str) -> None:
    assert axes.tick(value, unit) == text


@pytest.mark.parametrize("names", [["fp8", "bf16", "fp16", "tf32", "fp32"], ["FlashAttention-4", "ours, Triton"] * 3])
def test_no_legend_is_cut_off(names: list[str]) -> None:
    seen = []

    def draw(canvas, theme):
        ax = canvas.subplots()
        for place, name in enumerate(names):
            ax.plot([1, 2], [1e12 + place, 1e15], label=f"{name} {place}" if names.count(name) > 1 else name)
        plotting.log_axis(ax.yaxis, "FLOP/s", "throughput")
        plotting.legend(ax)
        canvas.draw_without_rendering()
        seen.append((ax.get_legend().get_window_extent(), canvas.bbox))

    plotting.show(draw, alt="Lines.", caption="Lines.")
    for legend, whole in seen:
        assert whole.x0 <= legend.x0
        assert legend.x1 <= whole.x1
