"""The picture and the words that a messenger or a network shows when somebody shares the address of a page.

The picture is drawn when the record behind it has changed. By hand, because sphinxext-opengraph imports matplotlib in
every build, also in one that changes nothing, and draws the words of a page and no measurement.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuguide.errors import GpuguideError
from gpuguide.measure import digest, reference_gpu, store
from gpuguide.site.pages.addresses import Addresses

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from sphinx.application import Sphinx

FILE = "_static/preview.png"
SIZE = (1200, 630)
"""Pixels, in the shape that all networks show whole"""
BENCHMARK, CASE = "gpu-metrics", {"scenario": "spin"}
"""One thread that reads a clock, as long as it is watched"""
GROUND, TEXT, MUTED, BUSY, DONE = "#14181e", "#f2f4f7", "#a9b3bf", "#6dbaf2", "#4fcba3"


@dataclass(frozen=True)
class Reading:
    """What the picture says."""

    utilisation: float
    """What the driver reports, of 1"""
    gpu: str
    """Its name, with the article"""


def connect(app: Sphinx) -> None:
    """Register this part with Sphinx."""
    app.connect("builder-inited", find)
    app.connect("html-page-context", add)
    app.connect("build-finished", write)


def find(app: Sphinx) -> None:
    """Read once what all pages tell."""
    vars(app)["gpuguide_preview"] = read()


def add(app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: object) -> None:
    """Give the template the addresses that the tags need whole, where the site's address is known."""
    addresses = Addresses.of(app.config)
    if not addresses.base or doctree is None:
        return
    context["shared"] = {"page": addresses.page(app.builder.get_target_uri(pagename))}
    if vars(app)["gpuguide_preview"]:
        context["shared"] |= {
            "picture": addresses.page(FILE),
            "width": SIZE[0],
            "height": SIZE[1],
            "text": "What a GPU reports while one thread reads a clock, and what it computes",
        }


def write(app: Sphinx, exception: Exception | None) -> None:
    """Draw the picture, unless it is there and would be the same."""
    reading: Reading | None = vars(app)["gpuguide_preview"]
    if exception is not None or app.builder.format != "html" or reading is None:
        return
    source = digest.module_path("gpuguide.site.look.social_preview").read_bytes()
    made_from = hashlib.sha256(f"{reading} {app.config.html_title}".encode() + source).hexdigest()
    target, note = Path(app.outdir, FILE), Path(app.doctreedir, "preview.txt")
    if not target.exists() or not note.exists() or note.read_text(encoding="utf-8") != made_from:
        draw(reading, app.config.html_title, target)
        note.write_text(made_from, encoding="utf-8")


def read() -> Reading | None:
    """Return what was measured, or nothing where the reference GPU has no such record."""
    try:
        record = store.published(BENCHMARK)
    except GpuguideError:  # a site needs no picture; pages that read a damaged record say what is wrong with it
        return None
    utilisation = record.case("nvml", **CASE).measured["gpu_utilisation"]
    return Reading(utilisation.summary.median, reference_gpu.word("a short"))


def draw(reading: Reading, title: str, target: Path) -> None:
    """Draw two bars: how busy the GPU says it is, and how much of its arithmetic is used."""
    from matplotlib import style

    with style.context("default"):  # whatever the builder prefers
        drawn(reading, title).savefig(target, metadata={"Software": None})


def drawn(reading: Reading, title: str) -> Figure:
    """Return the picture."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    figure = Figure(figsize=(SIZE[0] / 100, SIZE[1] / 100), dpi=100, facecolor=GROUND)
    FigureCanvasAgg(figure)
    ax = figure.add_axes((0, 0, 1, 1), xlim=(0, SIZE[0]), ylim=(SIZE[1], 0))
    ax.axis("off")
    ax.plot([70, 98, 150], [112, 66, 66], color=BUSY, linewidth=7, solid_capstyle="round", solid_joinstyle="round")
    ax.plot([132], [92], "o", color=TEXT, markersize=13)
    ax.text(172, 90, title, color=TEXT, fontsize=26, fontweight="bold", va="center")
    busy = f"{100 * reading.utilisation:.0f} % utilisation"
    rows = ((busy, reading.utilisation, BUSY), ("no arithmetic at all", 0.0, DONE))
    for (words, share, colour), top in zip(rows, (190, 330), strict=True):
        ax.text(70, top, words, color=colour, fontsize=44, fontweight="bold", va="center")
        ax.add_patch(Rectangle((70, top + 48), 1060, 22, color="#2a323d"))
        ax.add_patch(Rectangle((70, top + 48), max(1060 * share, 4), 22, color=colour))
    ax.text(70, 470, f"One thread that reads a clock, on {reading.gpu}.", color=TEXT, fontsize=25, va="center")
    ax.text(70, 552, "How GPUs and language models really behave", color=MUTED, fontsize=23, va="center")
    return figure
