"""Drawings for choosing an attention: what rules each kernel out, and which tiles a mask leaves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuguide.measure import reference_gpu, store
from gpuguide.measure.records import Record
from gpuguide.plotting import attention_backends, drawings, palette
from gpuguide.plotting.figure import Figure, show
from gpuguide.plotting.renditions import WIDE, is_narrow

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas
    from numpy.typing import NDArray

# --- what rules a kernel out -------------------------------------------------------------------------------

GATES: dict[str, attention_backends.Settings] = {
    "fp32": {"format": "fp32"},
    "a mask as a tensor": {"mask": "tensor"},
    "a window, documents": {"mask": "rule"},
    "a soft cap": {"mask": "softcap"},
    "grouped heads": {"grouped": "yes"},
    "heads above 128": {"head": "wide"},
    "heads above 256": {"head": "wider"},
    "A100, RTX 30 to 50": {"gpu": "ampere"},
    "T4 and older": {"gpu": "turing"},
    "no GPU": {"gpu": "cpu"},
}
"""What may rule a kernel out, and the setting of a call that stands for it"""
TAKES, PARTLY, REFUSES = "takes it", "with a limit", "refuses"
_WORDS = {"+": TAKES, "~": PARTLY, "-": REFUSES}
SHAPE: dict[str, int | bool | str] = {"head_dim": 128, "causal": True, "heads": 16}
TIMED: dict[str, int | bool | str] = {"pass": "forward-backward", "seq_len": 8192, **SHAPE}
MEASURED = {"mask": ("causal",), "head": ("listed",), "format": ("16 bits",), "grouped": ("no",)}
"""The settings of the calls that were timed"""
_SHORT = {
    "fa4": "FA-4",
    "sdpa-cudnn": "cuDNN",
    "flex": "Flex",
    "sdpa-flash": "FA-2",
    "sdpa-efficient": "efficient",
    "naive": "formula",
}
"""The names on a phone, on two lines in turn: neighbours do not fit next to each other"""


def marks(gate: str) -> str:
    """Return for each lane ``+`` where it takes a gate, ``~`` where it has a limit, and ``-`` where it refuses."""
    return "".join(attention_backends.compare_with_usual(name, GATES[gate]) for name in lanes())


def lanes() -> dict[str, float]:
    """Return the backends from the fastest to the slowest, with the time of a training step over the fastest's."""
    record = store.load_published("attention")
    times = {name: record.median(name, "time", **TIMED) for name in attention_backends.BACKENDS}
    fastest = min(times.values())
    return {name: times[name] / fastest for name in sorted(times, key=lambda name: times[name])}


def preferences() -> list[attention_backends.Preference]:
    """Return in which order backends are tried: first what was declared of calls that nobody timed, then the records.

    A short prefill is one that is no longer than the longest with which cuDNN leads.
    """
    record, decoded = store.load_published("attention"), store.load_published("decode-attention")
    longest = short_prefill()
    decode: dict[str, Any] = {"batch": 8, "context": 16384, "heads": 32, "kv_heads": 32}
    return [
        *attention_backends.PREFERENCES,
        _prefer(record, "train", "a training step, {seq_len} tokens, 16 heads of 128", **TIMED),
        _prefer(record, "prefill", "a forward pass, {seq_len} tokens, 16 heads of 128", **TIMED | {"pass": "forward"}),
        _prefer(
            record,
            "short-prefill",
            "a forward pass, {seq_len} tokens, 16 heads of 128",
            **TIMED | {"pass": "forward", "seq_len": longest},
        ),
        _prefer(decoded, "decode", "a decode step, {batch} sequences of {context} tokens, {heads} heads", **decode),
    ]


def short_prefill() -> int:
    """Return the greatest number of tokens with which cuDNN's forward pass is faster than FlashAttention-4's."""
    record = store.load_published("attention")
    keys: dict[str, Any] = {"pass": "forward", **SHAPE}
    found = {name: dict(record.series(name, "seq_len", "time", **keys)) for name in ("fa4", "sdpa-cudnn")}
    shorter = [
        int(length)
        for length, summary in found["sdpa-cudnn"].items()
        if length in found["fa4"] and summary.median < found["fa4"][length].median
    ]
    return max(shorter)


def _prefer(record: Record, work: str, what: str, **keys: Any) -> attention_backends.Preference:
    """Return the order of the backends for some work on the GPU that was measured; those without a time come last."""
    times = {
        case.contender: case.metrics["time"].summary.median
        for case in record.cases
        if case.status == "ok" and case.contender in attention_backends.BACKENDS and keys.items() <= case.keys.items()
    }
    fastest = min(times.values())
    first = sorted(times, key=lambda name: times[name])
    called = what.format_map(keys)
    return attention_backends.Preference(
        (*first, *(name for name in attention_backends.BACKENDS if name not in times)),
        f"The order is that of the times on {reference_gpu.word('a short')}: {called}.",
        {"work": (work,)},
        {name: round(times[name] / fastest, 3) for name in first},
        f"time of {called}",
        {"gpu": ("hopper",), "work": (work,), **MEASURED},
    )


def kernel_lanes() -> Figure:
    """Draw the kernels from the fastest to the slowest, and below each what it takes and what it refuses.

    On the site a reader sets what a call needs, and sees which kernels stay.
    """
    record, decoded = store.load_published("attention"), store.load_published("decode-attention")
    over = lanes()
    names = attention_backends.BACKENDS
    spoken = ", ".join(f"{names[name]} {factor:.1f}" for name, factor in over.items())
    refused = "; ".join(
        f"{gate}: {', '.join(names[name] for name, mark in zip(over, marks(gate), strict=True) if mark == '-')}"
        for gate in GATES
        if "-" in marks(gate)
    )
    longest = f"{short_prefill():,} tokens"
    words = {"prefill": f"prefill, more than {longest}", "short-prefill": f"prefill, up to {longest}"}
    return show(
        lambda figure, theme: _draw_lanes(figure, over),
        alt=f"Six columns, one per kernel, headed by bars for the time of a training step: {spoken}. Below, a row for "
        f"each thing that a call may need, with a cross where a kernel refuses it. Refused are: {refused}.",
        caption="Take the first backend, from the fastest, that refuses nothing your call needs. Dashed: with a limit, "
        "named below. Times on "
        f"{reference_gpu.word('a short')} are multiples of the fastest's, in the drawing those of a causal forward and "
        "backward pass.",
        records=[record, decoded],
        size=(WIDE, 5.4),
        narrow=(4.6, 5.6),
        name="kernel-lanes",
        rows=[
            {"kernel": names[name], "time_over_fastest": round(over[name], 4)}
            | {gate: _WORDS[marks(gate)[place]] for gate in GATES}
            for place, name in enumerate(over)
        ],
        interactive={"kind": "attention-chooser", **attention_backends.declare(preferences(), words)},
    )


def _draw_lanes(figure: Canvas, over: Mapping[str, float]) -> None:
    ax, width, height = drawings.sheet(figure)
    narrow = is_narrow(figure)
    left, names, tallest, foot = (120.0, 38.0, 52.0, 40.0) if narrow else (146.0, 34.0, 62.0, 26.0)
    lane = (width - left - 6) / len(over)
    top = height - 22 - tallest - names
    row = (top - foot) / len(GATES)
    middles = {gate: top - (number + 0.5) * row for number, gate in enumerate(GATES)}
    across = [left + (place + 0.5) * lane for place in range(len(over))]
    signs = {gate: marks(gate) for gate in GATES}
    for place, ((name, factor), x) in enumerate(zip(over.items(), across, strict=True)):
        tall = tallest * factor / max(over.values())
        _boxes(ax, [(x - 11, top + names, 22, tall)], palette.style(name).colour)
        drawings.label(ax, x, top + names + tall + 9, f"{factor:.1f}×", size=10)
        if narrow:
            drawings.label(ax, x, top + names - 10 - 14 * (place % 2), _SHORT[name], size=10)
        else:
            drawings.label(ax, x, top + names / 2 - 1, _break_in_two(attention_backends.BACKENDS[name]), size=10)
    drawings.label(ax, left - 8, top + names + 8, "time of a step", across="right", size=10)
    for place, (name, x) in enumerate(zip(over, across, strict=True)):
        hue = palette.style(name).colour
        for sign, strength in (("+", 0.75), ("~", 0.0)):
            rows = [middles[gate] for gate in GATES if signs[gate][place] == sign]
            _boxes(ax, [(x - 11, y - row / 2 + 3, 22, row - 6) for y in rows], hue, strength)
    for gate, y in middles.items():
        drawings.label(ax, left - 8, y, gate, across="right", size=10)
    crosses = [(x, middles[gate]) for gate in GATES for x, mark in zip(across, signs[gate], strict=True) if mark == "-"]
    step = 104.0 if narrow else 108.0
    begin = (width - 3 * step) / 2 + 28 if narrow else left - 10
    key = {mark: begin + place * step for place, mark in enumerate("+~-")}
    _boxes(ax, [(key["+"] - 11, foot / 2 - 12, 22, 16)], "grey")
    _boxes(ax, [(key["~"] - 11, foot / 2 - 12, 22, 16)], "grey", 0.0)
    _crosses(ax, [*crosses, (key["-"], foot / 2 - 4)])
    for mark, x in key.items():
        drawings.label(ax, x + 17, foot / 2 - 4, _WORDS[mark], across="left", size=10)


def _break_in_two(name: str) -> str:
    return name.replace("Attention", "-\nAttention").replace("memory-", "memory-\n").replace("the ", "the\n")


def _boxes(ax: Axes, boxes: Sequence[tuple[float, float, float, float]], hue: str, strength: float = 0.75) -> None:
    """Draw boxes of one look, each by its left, bottom, width and height, as one path: a page has many."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    if not boxes:
        return
    outlines = [
        Path([(x, y), (x + wide, y), (x + wide, y + tall), (x, y + tall), (x, y)], closed=True)
        for x, y, wide, tall in boxes
    ]
    theme = palette.current()
    colour = theme.series[hue] if hue else theme.faint
    line = {"linestyle": "-"} if strength else {"linestyle": (0, (3, 2))}
    ax.add_patch(PathPatch(Path.make_compound_path(*outlines), facecolor=(colour, strength), edgecolor=colour, **line))


def _crosses(ax: Axes, places: Sequence[tuple[float, float]]) -> None:
    gap = float("nan")
    xs = [each for x, _ in places for each in (x - 5, x + 5, gap, x - 5, x + 5, gap)]
    ys = [each for _, y in places for each in (y - 5, y + 5, gap, y + 5, y - 5, gap)]
    ax.plot(xs, ys, color=palette.current().ceiling, linewidth=1.8)


# --- which tiles a mask leaves -----------------------------------------------------------------------------

TOKENS, TILE = 1024, 128
WINDOW, PREFIX = 256, 320
DOCUMENTS = (384, 256, 384)
"""Lengths of the sequences that are packed into one"""

Rule = Callable[["NDArray[np.int64]", "NDArray[np.int64]"], "NDArray[np.bool_]"]


def rules() -> dict[str, Rule]:
    """Return the masks that are drawn, each a rule on the numbers of a query and a key."""
    number = np.repeat(np.arange(len(DOCUMENTS)), DOCUMENTS)
    return {
        "causal": lambda query, key: key <= query,
        f"window of {WINDOW}": lambda query, key: (key <= query) & (query - key < WINDOW),
        "documents": lambda query, key: (key <= query) & (number[query] == number[key]),
        f"prefix of {PREFIX}": lambda query, key: (key <= query) | (key < PREFIX),
    }


def tile_shares(rule: Rule) -> NDArray[np.float64]:
    """Return which share of the pairs of each tile a rule leaves, ``(tiles, tiles)``."""
    position = np.arange(TOKENS)
    seen = rule(position[:, None], position[None, :])
    count = TOKENS // TILE
    return seen.reshape(count, TILE, count, TILE).mean(axis=(1, 3))


def mask_tiles() -> Figure:
    """Draw four masks as tiles of scores: which hold pairs that are all seen, which are cut, and which are empty."""
    shares = {name: tile_shares(rule) for name, rule in rules().items()}
    counts = {name: (int((of == 1).sum()), int(((of > 0) & (of < 1)).sum())) for name, of in shares.items()}
    total = (TOKENS // TILE) ** 2
    spoken = "; ".join(f"{name}: {whole} whole and {cut} cut" for name, (whole, cut) in counts.items())
    return show(
        lambda figure, theme: _draw_masks(figure, shares),
        alt=f"Four squares of {total} tiles each, queries downwards and keys to the right. Of the tiles that are "
        f"computed, the mask cuts through some. {spoken}. All other tiles are skipped.",
        caption=f"Masks of {TOKENS} tokens in tiles of {TILE}. A kernel that knows the rule skips the empty tiles and "
        "applies the mask only in the cut ones. A kernel that receives the mask as a tensor computes all tiles.",
        size=(WIDE, 2.6),
        narrow=(4.6, 5.6),
        name="mask-tiles",
        rows=[
            {"mask": name, "whole": whole, "cut": cut, "skipped": total - whole - cut}
            for name, (whole, cut) in counts.items()
        ],
    )


def _draw_masks(figure: Canvas, shares: Mapping[str, NDArray[np.float64]]) -> None:
    ax, width, height = drawings.sheet(figure)
    columns = 2 if is_narrow(figure) else 4
    tiles = TOKENS // TILE
    across = width / columns
    side = (across - 22) / tiles
    for place, (name, of) in enumerate(shares.items()):
        left = (place % columns) * across + 11
        bottom = height - 22 - tiles * side - (place // columns) * (tiles * side + 42)
        whole, cut = ([*zip(*np.nonzero(kind), strict=True)] for kind in (of == 1, (of > 0) & (of < 1)))
        for found, hue, strength in ((whole, "blue", 0.6), (cut, "orange", 0.75)):
            corners = ((left + column * side, bottom + (tiles - 1 - row) * side) for row, column in found)
            _boxes(ax, [(x, y, side - 1.4, side - 1.4) for x, y in corners], hue, strength)
        _boxes(ax, [(left - 1, bottom - 1, tiles * side + 0.6, tiles * side + 0.6)], "", 0.0)
        drawings.label(ax, left + tiles * side / 2, bottom + tiles * side + 10, name, bold=True)
        computed = int((of > 0).sum())
        drawings.label(ax, left + tiles * side / 2, bottom - 10, f"{computed} of {tiles * tiles} tiles", size=10)
    x = 11.0
    for hue, strength, words, step in (
        ("blue", 0.6, "all pairs seen", 112.0),
        ("orange", 0.75, "cut by the mask", 124.0),
        ("", 0.0, "skipped", 0.0),
    ):
        _boxes(ax, [(x, 5, 12, 12)], hue, strength)
        drawings.label(ax, x + 17, 11, words, across="left", size=10)
        x += step


# --- a causal mask after a cache ---------------------------------------------------------------------------

CACHED, NEW = 7, 4
"""Keys in the cache, and new tokens; an example"""


def alignments() -> dict[str, NDArray[np.bool_]]:
    """Return which keys each new token sees, with the mask aligned at the first key and at the last."""
    query, key = np.arange(NEW)[:, None], np.arange(CACHED + NEW)[None, :]
    return {"is_causal=True": key <= query, "causal_lower_right": key <= query + CACHED}


def causal_after_cache() -> Figure:
    """Draw the two causal masks of new tokens after a cache: aligned at the first key, and at the last."""
    masks = alignments()
    seen = {name: [int(row.sum()) for row in mask] for name, mask in masks.items()}
    spoken = "; ".join(f"{name}: {', '.join(map(str, counts))}" for name, counts in seen.items())
    return show(
        lambda figure, theme: _draw_alignments(figure, masks),
        alt=f"Two masks of {NEW} new tokens, one a row, and {CACHED + NEW} keys, of which {CACHED} are in the cache. "
        f"Keys that each new token sees, {spoken}. With the first mask, no new token sees all of the cache; with the "
        "second, each sees the cache, the new tokens before it and itself.",
        caption="After a cache, is_causal=True hides keys that must be seen. Rows: new tokens; right of the line: "
        "their own keys.",
        size=(WIDE, 2.3),
        narrow=(4.6, 4.6),
        name="causal-after-cache",
        rows=[
            {"mask": name, "new_token": place + 1, "keys_seen": count}
            for name, counts in seen.items()
            for place, count in enumerate(counts)
        ],
    )


def _draw_alignments(figure: Canvas, masks: Mapping[str, NDArray[np.bool_]]) -> None:
    ax, width, height = drawings.sheet(figure)
    narrow = is_narrow(figure)
    count = CACHED + NEW
    across = width if narrow else width / 2
    side = min((across - 40) / count, 22.0)
    down = (height - 26) / 2
    wanted = list(masks.values())[-1]
    for place, (name, mask) in enumerate(masks.items()):
        left = (0 if narrow else place * across) + (across - count * side) / 2
        bottom = height - (place * down if narrow else 0) - 30 - NEW * side
        kinds = (("blue", 0.6, mask), ("orange", 0.0, wanted & ~mask), ("", 0.0, ~wanted & ~mask))
        for hue, strength, chosen in kinds:
            cells = [*zip(*np.nonzero(chosen), strict=True)]
            boxes = [(left + x * side, bottom + (NEW - 1 - y) * side, side - 2, side - 2) for y, x in cells]
            _boxes(ax, boxes, hue, strength)
        drawings.label(ax, left + count * side / 2, bottom + NEW * side + 13, name, bold=True)
        line = left + CACHED * side - 1
        drawings.moment(ax, line, bottom - 20, bottom + NEW * side + 3, dotted=False)
        drawings.label(ax, line - 6, bottom - 12, "keys in the cache", across="right", size=10)
        drawings.label(ax, line + 6, bottom - 12, "new keys", across="left", size=10)
    step, x = (78.0, 130.0), (12.0 if narrow else (width / 2 - count * side) / 2)
    for hue, strength, words, far in (
        ("blue", 0.6, "seen", step[0]),
        ("orange", 0.0, "wrongly hidden", step[1]),
        ("", 0.0, "in the future", 0.0),
    ):
        _boxes(ax, [(x, 6, 12, 12)], hue, strength)
        drawings.label(ax, x + 17, 12, words, across="left", size=10)
        x += far
