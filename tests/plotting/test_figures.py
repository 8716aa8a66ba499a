"""Figures from records: what stands in them, in each rendition."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import synthetic_records as synthetic
from figure_rows import rows_of

from gpuguide import plotting
from gpuguide.errors import GpuguideError
from gpuguide.measure import folders, records, reference_gpu, store
from gpuguide.plotting import axes, data, figure, finishing, other_gpus, renditions, text_boxes


@pytest.fixture(autouse=True)
def reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """The synthetic records are of the GPU that prose speaks of."""
    monkeypatch.setattr(reference_gpu, "slug", lambda: synthetic.PUBLISHED[0])


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
def test_on_the_site_a_figure_is_drawn_for_both_schemes_and_widths_with_real_text(record: records.Record) -> None:
    shown = plotting.show(drawing(record), alt="Two curves.", caption="Products.")
    bundle, _ = shown._repr_mimebundle_()
    content = bundle[figure.MIME]
    assert (content["name"], content["interactive"]) == ("", {})
    assert set(content["svg"]) == {"light", "dark", "light-narrow", "dark-narrow"}
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
    drawn = renditions.svg(drawing(record), plotting.DARK, (renditions.WIDE, 4.1))
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
    monkeypatch.setattr(folders, "published_folder", lambda: tmp_path)
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
    """The strokes of the thin curves that readers see who ask for other GPUs."""
    drawing = shown.others.get("svg", shown.svg)["light"]
    found = re.findall(
        r"stroke-dasharray: 3\.25,1\.56; stroke-dashoffset: 0; stroke: (#[0-9a-f]{6}); stroke-width: 1\.3", drawing
    )
    assert "opacity: 0.45" not in drawing
    return found


@pytest.mark.usefixtures("site_build")
def test_another_published_gpu_is_drawn_thin_in_the_contenders_colour(published: Path) -> None:
    alone = shown_curves(contenders=["matmul-bf16", "matmul-fp32"])
    publish(published, "matmul-size", synthetic.OTHER)
    publish(published, "copy-size", synthetic.OWN)
    both = shown_curves(contenders=["matmul-bf16", "matmul-fp32"])
    colours = {plotting.LIGHT.series["orange"], plotting.LIGHT.series["pink"]}
    assert (lines_drawn(alone), colours <= set(lines_drawn(both))) == ([], True)
    assert alone.others == {}
    assert (both.svg, both.png, both.alt, both.stamps) == (alone.svg, alone.png, "Curves.", alone.stamps)
    assert all(">H200<" in both.others["svg"][name] for name in ("light", "dark", "light-narrow", "dark-narrow"))
    assert (both.others["alt"], both.caption) == ("Curves. Thin: NVIDIA H200.", "Products.")
    assert [stamp.split(" · ")[0] for stamp in both.others["stamps"]] == ["NVIDIA H200"]
    assert not [stamp for stamp in both.others["stamps"] if "code" in stamp]


@pytest.mark.usefixtures("site_build")
def test_an_old_record_of_another_gpu_names_the_day_of_its_code(published: Path) -> None:
    publish(published, "matmul-size", synthetic.OTHER, stale=True)
    shown = shown_curves(contenders=["matmul-bf16"])
    assert shown.caption == "Products."
    assert "2026-01-02" in shown.others["alt"]
    (stamp,) = shown.others["stamps"]
    assert stamp.endswith("measured with the code of 2026-01-02 · n = 20")
    drawing = shown.others["svg"]["light"]
    assert ">H200 (code of 2026-01-02)<" in drawing
    assert lines_drawn(shown)
    assert "stale" not in drawing + stamp


@pytest.mark.usefixtures("site_build")
def test_of_many_contenders_one_is_drawn_for_another_gpu(published: Path) -> None:
    publish(published, "matmul-size", synthetic.OTHER)
    assert len(set(lines_drawn(shown_curves())) - {plotting.LIGHT.text}) == 1
    chosen = shown_curves(beside=["matmul-fp8", "matmul-fp16"])
    colours = {plotting.LIGHT.series[name] for name in ("violet", "blue")}
    assert set(lines_drawn(chosen)) - {plotting.LIGHT.text} == colours
    assert other_gpus.contenders(["torch", "gpuguide-triton", "fa4"]) == ["gpuguide-triton"]


def test_the_freshest_and_newest_other_gpu_is_drawn_and_never_a_processor(published: Path) -> None:
    record = store.load_published("matmul-size")
    assert other_gpus.find_compared_records(record) == []
    publish(published, "matmul-size", synthetic.OWN, stale=True)
    publish(published, "matmul-size", ("2x-nvidia-h200", "NVIDIA H200"))
    assert [other.device for other in other_gpus.find_compared_records(record)] == [synthetic.OWN[0]]
    publish(published, "matmul-size", synthetic.OTHER)
    assert [other.device for other in other_gpus.find_compared_records(record)] == [synthetic.OTHER[0]]
    assert other_gpus.find_compared_records(store.load_published("matmul-size", "cpu")) == []
    assert other_gpus.find_compared_records(store.load_published("matmul-size", synthetic.OTHER[0])) == []


def test_drawings_by_hand_ask_for_the_other_gpu(published: Path) -> None:
    publish(published, "matmul-size", synthetic.OTHER)
    assert len(plotting.load_published_and_mine("matmul-size")) == 1
    assert len(plotting.load_published_and_mine("matmul-size", others=True)) == 2


@pytest.mark.usefixtures("site_build")
def test_bars_of_another_gpu_are_thin(published: Path) -> None:
    publish(published, "timing-mistakes", synthetic.OTHER)

    def draw(canvas, theme):
        ax = canvas.subplots()
        plotting.bars(ax, "timing-mistakes", metric="throughput", contenders=["right", "zeros"], shape="square")
        heights.update(round(patch.get_height(), 2) for patch in ax.patches)

    heights: set[float] = set()
    assert plotting.show(draw, alt="Bars.", caption="Products.").others["alt"] == "Bars. Thin: NVIDIA H200."
    assert heights == {0.66, 0.25}


def test_a_stamp_names_the_libraries_of_the_contenders_that_are_drawn(published: Path) -> None:
    record = store.load_published("matmul-size")
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
    assert len(plotting.load_published_and_mine(published, "copy", "launch")) == 2
    assert plotting.load_published_and_mine(published, "copy", "matmul-fp8") == [published]


def test_a_readers_own_h100_is_told_from_ours(
    record: records.Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synthetic.write_all(tmp_path, synthetic.PUBLISHED, slower=1.1)
    monkeypatch.setenv("GPUGUIDE_RECORDS", str(tmp_path))
    names = [plotting.device_label(each) for each in plotting.load_published_and_mine(record)]
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
        (0.001, "1", "0.001"),
    ],
)
def test_ticks_carry_units_and_no_idle_zeros(value: float, unit: str, text: str) -> None:
    assert axes.tick(value, unit) == text


LINES = [["fp8", "bf16", "fp16", "tf32", "fp32"], [f"{name} {n}" for n in range(3) for name in ("cuDNN", "Triton")]]


@pytest.mark.usefixtures("site_build")
@pytest.mark.parametrize("names", LINES)
def test_up_to_five_lines_bear_their_names_and_more_have_a_legend(names: list[str]) -> None:
    legends = []

    def draw(canvas, theme):
        ax = canvas.subplots()
        for place, name in enumerate(names):
            ax.plot([1, 2], [1e12 + place, 1e15 + 1e12 * place], label=name)
        plotting.log_axis(ax.yaxis, "FLOP/s", "throughput")
        plotting.legend(ax)
        legends.append((canvas.get_figwidth() > 5, ax))

    shown = plotting.show(draw, alt="Lines.", caption="Lines.")
    assert {(wide, ax.get_legend() is None) for wide, ax in legends if ax.texts or ax.get_legend()} == {
        (True, len(names) == 5),
        (False, False),
    }
    assert shown.svg is not None
    for svg in shown.svg.values():
        assert set(names) <= {box.text for box in text_boxes.text_boxes(svg)}
        assert text_boxes.cut_off(svg) == []


@pytest.mark.usefixtures("site_build")
def test_a_legend_of_all_panels_fits_into_the_figure() -> None:
    def draw(canvas, theme):
        left, _ = canvas.subplots(1, 2)
        lines = [left.plot([1, 2], [place, 2])[0] for place in range(4)]
        canvas.legend(lines, [f"a name of some length {n}" for n in range(4)], loc="outside upper left", ncols=4)

    shown = plotting.show(draw, alt="Lines.", caption="Lines.")
    assert shown.svg is not None
    assert "a name of some length 3" in shown.svg["light-narrow"]


@pytest.mark.usefixtures("site_build")
def test_names_at_lines_that_end_at_one_height_do_not_cover_each_other() -> None:
    def draw(canvas, theme):
        ax = canvas.subplots()
        for name in ("first", "second", "third"):
            ax.plot([1, 2], [1, 2], label=name)
        plotting.legend(ax)

    shown = plotting.show(draw, alt="Lines.", caption="Lines.")
    assert shown.svg is not None
    boxes = [box for box in text_boxes.text_boxes(shown.svg["light"]) if box.text in ("first", "second", "third")]
    first, second, third = sorted(boxes, key=lambda box: box.top)
    assert first.bottom < second.top
    assert second.bottom < third.top


@pytest.mark.usefixtures("site_build")
def test_text_that_does_not_lie_within_the_figure_is_refused() -> None:
    def draw(canvas, theme):
        canvas.text(0.99, 0.5, "this goes over the edge")

    with pytest.raises(GpuguideError, match="'this goes over the edge' is cut off"):
        plotting.show(draw, alt="Words.", caption="Words.")


@pytest.mark.usefixtures("site_build")
def test_no_text_is_smaller_than_ten_pixels_on_a_phone() -> None:
    def draw(canvas, theme):
        ax = canvas.subplots()
        ax.semilogx([1, 1000], [1, 2], label="a line")  # whose ticks would have tiny exponents
        ax.set_xlabel("tiny", fontsize=5)
        ax.tick_params(labelsize=4)
        ax.annotate("small", (10, 1.5), fontsize=6)
        ax.annotate("0.00012", (100, 1.5))

    shown = plotting.show(draw, alt="Words.", caption="Words.")
    assert shown.svg is not None
    assert text_boxes.too_small(shown.svg["light-narrow"]) == []
    assert {"tiny", "small", "1000", "0.00012"} <= {
        box.text for box in text_boxes.text_boxes(shown.svg["light-narrow"])
    }


SVG = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 200 100"><g transform="translate(10 20)">
<text style="font-size: 10px; text-anchor: {anchor}" x="{x}" y="0"{turn}>over the edge</text></g></svg>"""


@pytest.mark.parametrize(
    ("anchor", "x", "turn", "lies_within"),
    [
        ("start", 0, "", True),
        ("start", 150, "", False),
        ("end", 150, "", True),
        ("middle", 0, "", False),
        ("start", 100, ' transform="rotate(90 110 20)"', True),
        ("start", 100, ' transform="rotate(-90 110 20)"', False),
    ],
)
def test_where_the_text_of_an_svg_stands(anchor: str, x: int, turn: str, lies_within: bool) -> None:
    svg = SVG.format(anchor=anchor, x=x, turn=turn)
    assert (text_boxes.cut_off(svg) == []) == lies_within
    assert text_boxes.too_small(svg, screen=200) == []
    assert text_boxes.too_small(svg, screen=190) == ["over the edge"]


@pytest.mark.usefixtures("site_build")
def test_the_fonts_are_those_of_the_page(record: records.Record) -> None:
    shown = plotting.show(drawing(record), alt="Two curves.", caption="Products.")
    assert shown.svg is not None
    assert set(re.findall(r"font-family: ([^;\"]*)", shown.svg["light"])) == {"system-ui, sans-serif"}


@pytest.mark.usefixtures("site_build")
def test_the_data_of_a_figure_are_its_points_in_si_units(record: records.Record) -> None:
    shown = plotting.show(drawing(record), alt="Two curves.", caption="Products.")
    rows = rows_of(shown)
    cases = [case for case in record.cases if case.contender in ("matmul-bf16", "matmul-fp32")]
    assert {(row["series"], float(row["x"]), float(row["y"])) for row in rows} == {
        (case.contender, float(case.keys["size"]), float(f"{case.metrics['throughput'].summary.median:.6g}"))
        for case in cases
    }
    assert {(row["x_name"], row["x_unit"], row["y_unit"]) for row in rows} == {("rows and columns", "count", "FLOP/s")}
    assert all(float(row["y_p25"]) <= float(row["y"]) <= float(row["y_p75"]) for row in rows)


def test_the_data_of_bars_and_maps_bear_the_names_of_the_ticks() -> None:
    from matplotlib.figure import Figure as Canvas

    def draw(canvas, theme):
        bars, cells = canvas.subplots(2)
        bars.barh([0, 1], [3.0, 4.0])
        bars.set_yticks([0, 1], ["three", "four"])
        cells.imshow([[1, 2], [3, 4]])

    figure = Canvas()
    draw(figure, plotting.LIGHT)
    rows = list(data.rows_of(figure))
    assert [(row["x"], row["y"]) for row in rows[:2]] == [(3.0, "three"), (4.0, "four")]
    assert [(row["x"], row["y"], row["value"]) for row in rows[2:]] == [(0, 0, 1), (1, 0, 2), (0, 1, 3), (1, 1, 4)]


@pytest.mark.parametrize("wanted", [[], [5.0], [10.0, 11.0, 50.0], [99.0, 99.5, 100.0], [0.0, 50.0, 51.0, 52.0]])
def test_heights_are_moved_apart_in_their_order(wanted: list[float]) -> None:
    found = finishing.apart(wanted, 14.0, 100.0)
    assert all(upper - lower >= 13.999 for lower, upper in pairwise(found))
    assert all(height <= 100.0 for height in found)
    if all(upper - lower >= 14.0 for lower, upper in pairwise(wanted)):
        assert found == wanted
