"""Figures that one can try on the site: a script takes the place of the drawing, which is complete without it.

Elsewhere they are figures like any other.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuguide.errors import GpuguideError
from gpuguide.measure import measured_ceilings, reference_gpu, store
from gpuguide.measure.records import Record
from gpuguide.plotting import marks, palette, training_map
from gpuguide.plotting.axes import linear_axis, log_axis
from gpuguide.plotting.figure import Figure, load_published_and_mine, show
from gpuguide.units import format_quantity

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

FORMATS = {"matmul-fp8": "fp8", "matmul-bf16": "bf16", "matmul-tf32": "tf32", "matmul-fp32": "fp32"}
"""Contenders of the benchmark ``ceilings`` that give a roof its height, and what the roof is called"""
INTENSITIES = (0.1, 10_000.0)
"""FLOP/B"""
SETTINGS = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
"""What the model's own distribution has"""
NAMED = 16
"""Tokens that are drawn with their names"""
INT16 = 32767
"""Largest step of a factor of an update: the error of a step is below what a picture shows"""


# --- a roofline one can point at ---------------------------------------------------------------------------


def roofline_to_try() -> Figure:
    """Draw the measured rooflines of all number formats, with the two products of ``timing-mistakes`` on them.

    On the site a reader points at an intensity, or moves a slider, and is told what bounds a kernel there.
    """
    ceilings, timed = store.load_published("ceilings"), store.load_published("timing-mistakes")
    bandwidth, roofs = _roofs(ceilings)
    points = _products(timed)
    reach = "; ".join(f"{name} bends at {rate / bandwidth:.0f} FLOP/B" for name, rate in roofs.items())
    words = " and ".join(
        f"the {at['name']} matmul reaches {format_quantity(at['rate'], 'FLOP/s')} at {at['intensity']:.0f} FLOP/B"
        for at in points
    )
    return show(
        _draw_rooflines,
        alt=f"Rooflines of {ceilings.device_name} over arithmetic intensity: one slope, which is the bandwidth of "
        f"{format_quantity(bandwidth, 'B/s')}, and a flat part for each number format. {reach}. In bf16, {words}.",
        caption="Measured rooflines, one for each number format. Left of the bend, memory is the limit; right of it, "
        "arithmetic is. The faster a format's arithmetic, the more operations per byte it takes to reach its peak.",
        records=[ceilings, timed],
        name="roofline-to-try",
        interactive={
            "kind": "roofline",
            "device": ceilings.device_name.removeprefix("NVIDIA "),
            "bandwidth": bandwidth,
            "roofs": [{"name": name, "rate": rate} for name, rate in roofs.items()],
            "points": points,
            "range": INTENSITIES,
            "first": "bf16",
        },
    )


def _roofs(record: Record) -> tuple[float, dict[str, float]]:
    """Return the bandwidth of a copy and the rate of each format: a GPU's ceilings, or what a reader's record has."""
    if store.is_mine(record) or not reference_gpu.is_reference(record):
        rates = {name: record.median(contender, "throughput") for contender, name in FORMATS.items()}
        return record.median("copy", "bandwidth"), rates
    gpu = measured_ceilings.load_reference()
    return gpu.bandwidth["copy"].value, {name: gpu.arithmetic[name].value for name in FORMATS.values()}


def _products(timed: Record) -> list[dict[str, Any]]:
    """Return where the products of ``timing-mistakes`` stand: operations and bytes of a call are in its rates."""
    found = []
    for shape in ("square", "skinny"):
        rate, moved = (timed.median("right", metric, shape=shape) for metric in ("throughput", "bandwidth"))
        found.append({"name": shape, "format": "bf16", "intensity": rate / moved, "rate": rate})
    return found


def _draw_rooflines(figure: Canvas, theme: palette.Theme) -> None:
    ax = figure.subplots()
    records = load_published_and_mine("ceilings", "copy", *FORMATS)
    for record in records:
        bandwidth, roofs = _roofs(record)
        for contender, name in FORMATS.items():
            marks.roofline(
                ax,
                bandwidth=bandwidth,
                throughput=roofs[name],
                label=name,
                contender=contender,
                record=record,
                intensity=INTENSITIES,
            )
    for record in load_published_and_mine("timing-mistakes", "right"):
        for each in _products(record):
            look: dict[str, Any] = {"color": palette.colour("matmul-bf16"), "marker": "s", "markersize": 8}
            ax.plot(each["intensity"], each["rate"], **look | marks.stroke(record, line=False))
            ax.annotate(each["name"], (each["intensity"], each["rate"] * 0.45), ha="center")
    marks.name_devices(ax, records)
    log_axis(ax.xaxis, "1", "operations for each byte (FLOP/B)")
    log_axis(ax.yaxis, "FLOP/s", "throughput")
    marks.legend(ax)


# --- the limits of a chain of operations ---------------------------------------------------------------------


def limits_to_try(operations: int = 24) -> Figure:
    """Draw the predicted time of a chain of element-wise operations over the size of its arrays.

    On the site a reader moves sliders of elements and operations, and is told which limit holds.
    """
    ceilings = store.load_published("ceilings")
    gpu = measured_ceilings.load_reference()
    machine = {
        "launch": ceilings.median("launch", "time"),
        "graph": ceilings.median("launch-graph", "time"),
        "bandwidth": gpu.bandwidth["copy"].value,
        "arithmetic": gpu.arithmetic["fp32"].value,
    }
    turns = {name: _turning_point(machine, operations, name) for name in CHAINS}

    def draw(figure: Canvas, theme: palette.Theme) -> None:
        ax = figure.subplots()
        sizes = np.logspace(12, 28, 129, base=2)
        for (name, colour), style in zip(CHAINS.items(), ("-", "--", "-."), strict=True):
            times = [max(chain_limits(machine, size, operations, name).values()) for size in sizes]
            ax.plot(sizes, times, style, color=theme.series[colour], label=name)
            ax.plot(turns[name], times[int(np.searchsorted(sizes, turns[name]))], "o", color=theme.series[colour])
        ax.set_xscale("log", base=2)
        ax.set_xticks([2**power for power in SIZES], list(SIZES.values()))
        ax.set_xlabel("elements of each array, bf16")
        log_axis(ax.yaxis, "s", f"predicted time of {operations} operations")
        marks.legend(ax)

    return show(
        draw,
        alt=f"Predicted time of {operations} element-wise operations over the elements of their arrays, from the "
        f"ceilings of {ceilings.device_name}. Launched one by one, they take the same time up to "
        f"{turns['one by one']:.3g} elements, in a graph up to {turns['in a graph']:.3g}, and fused "
        f"up to {turns['fused, in a graph']:.3g}. Larger arrays are memory-bound, and the time grows with their size.",
        caption="The predicted time of a chain of element-wise operations. Small arrays are launch-bound, large ones "
        "memory-bound. A model from measured ceilings, in which each operation reads one array from memory and writes "
        "one. Arrays that fit into the L2 cache can be faster.",
        records=[ceilings],
        name="limits-to-try",
        rows=[
            {"operations": operations, "method": name, "elements at the bend": round(turns[name])} for name in CHAINS
        ],
        interactive={"kind": "step-limits", "machine": machine, "operations": operations, "elements": 20},
    )


CHAINS = {"one by one": "blue", "in a graph": "orange", "fused, in a graph": "green"}
"""How a chain is launched, and the colours"""
SIZES = {12: "4 Ki", 16: "64 Ki", 20: "1 Mi", 24: "16 Mi", 28: "256 Mi"}
"""Names of sizes, by their power of two"""
BF16 = 2
"""Bytes of an element"""


def chain_limits(machine: Mapping[str, float], elements: float, operations: int, name: str) -> dict[str, float]:
    """Return the seconds that launches, bytes and FLOPs of a chain take at least, each operation reading one array."""
    kernels = 1 if name.startswith("fused") else operations
    launch = machine["launch"] if name == "one by one" else machine["graph"]
    return {
        "launches": kernels * launch,
        "bytes": 2 * kernels * elements * BF16 / machine["bandwidth"],
        "FLOPs": elements * operations / machine["arithmetic"],
    }


def _turning_point(machine: Mapping[str, float], operations: int, name: str) -> float:
    """Return the number of elements above which launches are no longer the limit."""
    of_one = chain_limits(machine, 1.0, operations, name)
    return of_one["launches"] / max(of_one["bytes"], of_one["FLOPs"])


# --- the knobs of sampling ---------------------------------------------------------------------------------


def sampling_to_try(
    logits: Sequence[float], tokens: Sequence[str], context: str, settings: Mapping[str, float] | None = None
) -> Figure:
    """Draw a model's own distribution of the next token, and what settings of sampling leave of it.

    On the site a reader turns temperature, top-k, top-p and min-p, and sees what is left.

    Parameters
    ----------
    logits : sequence of float
        One row, of the whole vocabulary.
    tokens : sequence of str
        Of each place of the row, the text of its token.
    context : str
        What the model has read.
    settings : mapping, optional
        ``temperature``, ``top_k``, ``top_p`` and ``min_p`` at first; by default those that change nothing.

    Raises
    ------
    GpuguideError
        If ``logits`` and ``tokens`` differ in length, are empty, or are not finite.
    """
    row = np.asarray(logits, dtype=np.float64)
    if row.ndim != 1 or not len(row) or len(row) != len(tokens) or not np.isfinite(row).all():
        raise GpuguideError(
            f"The knobs of sampling need a finite logit and a text for each token: there are {row.shape} logits and "
            f"{len(tokens)} texts."
        )
    order = np.argsort(-row, kind="stable")
    ordered = np.round(row[order] - row[order[0]], 3)
    probabilities = np.exp(ordered) / np.exp(ordered).sum()
    names = [repr(tokens[place]) for place in order[:NAMED]]
    rest = len(row) - len(names)
    words = ", ".join(f"{name} {share:.1%}" for name, share in list(zip(names, probabilities, strict=False))[:5])

    def draw(figure: Canvas, theme: palette.Theme) -> None:
        ax = figure.subplots()
        labels = [*names, f"{rest} others"] if rest else names
        shares = [*probabilities[: len(names)], float(probabilities[len(names) :].sum())][: len(labels)]
        ax.barh(range(len(labels)), shares, color=theme.series["blue"], height=0.7)
        for place, share in enumerate(shares):
            text = f"{share:.1%}" if share >= 0.0005 else "< 0.1%"
            ax.annotate(text, (share, place), (5, 0), textcoords="offset points", va="center", fontsize=10)
        ax.set_yticks(range(len(labels)), labels)
        ax.invert_yaxis()
        ax.grid(axis="y", visible=False)
        linear_axis(ax.xaxis, "1", "probability of being the next token")
        ax.margins(x=0.15)

    return show(
        draw,
        alt=f"Bars: the model's probabilities of the next token after {context!r}. The five most likely: {words}.",
        caption=f"What the model itself expects after {context!r}. "
        "Sampling reshapes this distribution before it draws.",
        size=(7.2, 4.9),
        narrow=(4.6, 4.9),
        name="sampling-to-try",
        interactive={
            "kind": "sampling-knobs",
            "logits": [float(f"{value:.3f}") for value in ordered],
            "names": names,
            "first": SETTINGS | dict(settings or {}),
        },
    )


# --- the rank of an update ---------------------------------------------------------------------------------


def rank_to_try(update: Any, what: str, first: int = 4) -> Figure:
    """Draw an update of a matrix, and what its best approximation of a low rank keeps.

    On the site a reader moves a slider from rank to rank, and the two thin matrices and their product follow.

    Parameters
    ----------
    update : array_like
        What training added to the matrix, ``(out, in)``.
    what : str
        Which matrix of which model it is, for the caption.
    first : int
        The rank that is shown at first.

    Raises
    ------
    GpuguideError
        If ``update`` is no matrix of finite numbers, is zero everywhere, or has no rank ``first``.
    """
    matrix = np.asarray(update, dtype=np.float64)
    if matrix.ndim != 2 or not np.isfinite(matrix).all() or not matrix.any() or not 0 <= first <= min(matrix.shape):
        raise GpuguideError(
            f"The slider needs a matrix of finite numbers that are not all zero, and a rank up to its smaller side: "
            f"the shape is {matrix.shape}, the rank {first}."
        )
    b, a = factors(matrix)
    product = b[:, :first] @ a[:first]
    kept = 1 - float(np.square(matrix - product).sum() / np.square(matrix).sum())
    rows, columns = matrix.shape
    strongest = 3 * float(np.sqrt(np.square(matrix).mean()))

    def draw(figure: Canvas, theme: palette.Theme) -> None:
        from matplotlib.colors import LinearSegmentedColormap

        ends = [theme.series["blue"], theme.background, theme.series["orange"]]
        tones = LinearSegmentedColormap.from_list("update", ends)
        for ax, shown, title in zip(
            figure.subplots(2, 1),
            (matrix, product),
            ("the update", f"its best approximation of rank {first}"),
            strict=True,
        ):
            ax.imshow(shown, cmap=tones, vmin=-strongest, vmax=strongest, aspect="auto", interpolation="nearest")
            ax.set_title(title)
            ax.set_xticks([])
            ax.set_yticks([])
            ax.grid(visible=False)

    return show(
        draw,
        alt=f"Two heat maps of {rows} by {columns} numbers: an update, and its best approximation of rank {first}, "
        f"which keeps {kept:.0%} of its squared norm.",
        caption=f"Rank {first} keeps {kept:.0%} of the update's squared norm. The figure shows the update of {what}.",
        size=(7.2, 5.2),
        narrow=(4.6, 4.4),
        name="rank-to-try",
        interactive={"kind": "rank-slider", "b": _pack(b), "a": _pack(a), "first": first},
    )


def factors(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return B, ``(out, k)``, and A, ``(k, in)``, whose first r columns and rows give the best product of rank r.

    Both have the root of each singular value, which falls from the first on (C. Eckart and G. Young, 1936).
    """
    left, values, right = np.linalg.svd(matrix, full_matrices=False)
    roots = np.sqrt(values)
    return left * roots, roots[:, None] * right


def _pack(matrix: np.ndarray) -> dict[str, Any]:
    """Return a matrix as a script reads it: 16 bits a number, which are steps of one unit."""
    unit = float(np.abs(matrix).max()) / INT16
    steps = np.round(matrix / unit).astype("<i2")
    rows, columns = matrix.shape
    return {"rows": rows, "columns": columns, "unit": unit, "data": base64.b64encode(steps.tobytes()).decode()}


# --- a map of the loss ---------------------------------------------------------------------------------------

SPAN = 1.0
"""Nats above the lowest loss from which a setting has no colour"""


def map_to_try(is_chance: training_map.IsChance) -> Figure:
    """Draw the map of the loss over batch size and learning rate.

    On the site a reader chooses a cell, and sees the losses of its seeds and the curve of the first.

    Parameters
    ----------
    is_chance : callable
        Test of whether two settings' losses, by seed, differ by no more than chance. Rates that do not differ from the
        best of their batch size are bold like it.
    """
    record = store.load_published("training-runs")
    found = training_map.settings(record)
    best, good = training_map.best_by_batch(found), training_map.good_by_batch(found, is_chance)
    lowest = min(setting.loss for setting in found)
    batches, rates = list(best), sorted({setting.rate for setting in found}, reverse=True)
    words = ", ".join(f"{training_map.name_rate(each.rate)} for batch {batch}" for batch, each in best.items())

    def draw(figure: Canvas, theme: palette.Theme) -> None:
        from matplotlib.colors import LinearSegmentedColormap

        ax = figure.subplots()
        tones = LinearSegmentedColormap.from_list("loss", [theme.series["sky"], theme.background])
        losses = {(one.batch, one.rate): one.loss for one in found}
        shown = [[min(losses[batch, rate], lowest + SPAN) for batch in batches] for rate in rates]
        ax.imshow(shown, cmap=tones, vmin=lowest, vmax=lowest + SPAN, aspect="auto", interpolation="nearest")
        for row, rate in enumerate(rates):
            for column, batch in enumerate(batches):
                loss, weight = losses[batch, rate], "bold" if rate in good[batch] else "normal"
                text = f"{loss:.2f}" if math.isfinite(loss) else "div."
                ax.text(column, row, text, ha="center", va="center", fontweight=weight)
        ax.set_xticks(range(len(batches)), [f"{batch:,}" for batch in batches])
        ax.set_yticks(range(len(rates)), [training_map.name_rate(rate) for rate in rates])
        ax.set_xlabel("batch: sequences of 256 tokens")
        ax.set_ylabel("learning rate")
        ax.grid(visible=False)

    return show(
        draw,
        alt=f"A table of losses: {len(rates)} learning rates by {len(batches)} batch sizes. The best rates are "
        f"{words}.",
        caption="Held-out loss (nats) by batch size and learning rate, after the same number of tokens. Bold: the best "
        "rate of each batch size, and any other that a t-test does not tell apart from it. Cells around the rate that "
        "the square root rule predicts show the mean of three seeds, the others one seed.",
        records=[record],
        size=(7.2, 4.2),
        narrow=(4.6, 4.2),
        name="map-to-try",
        rows=[
            {"batch": one.batch, "learning rate": one.rate, "seeds": len(one.losses), "diverged": one.diverged}
            | ({"loss": round(one.loss, 4)} if math.isfinite(one.loss) else {})
            for one in found
        ],
        interactive={
            "kind": "training-map",
            "batches": batches,
            "rates": [{"value": rate, "name": training_map.name_rate(rate)} for rate in rates],
            "span": SPAN,
            "settings": [
                {
                    "batch": one.batch,
                    "rate": one.rate,
                    "loss": round(one.loss, 4) if math.isfinite(one.loss) else None,
                    "losses": [round(loss, 3) for loss in one.losses],
                    "diverged": one.diverged,
                    "good": one.rate in good[one.batch],
                    "curve": [round(loss, 2) for loss in one.curve],
                }
                for one in found
            ],
        },
    )
