"""Drawings of number formats: their bits and their ranges, and how many bits are left where numbers are small.

The formats are those of :mod:`gpuguide.precision.formats`, which drawings do not import; a test compares the two.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuguide.plotting import drawings
from gpuguide.plotting.figure import Figure, show
from gpuguide.plotting.renditions import WIDE, is_narrow

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

    from gpuguide.plotting.palette import Theme


@dataclass(frozen=True)
class Layout:
    """The fields of a format, and the largest number that they hold."""

    name: str
    exponent_bits: int
    mantissa_bits: int
    largest: float

    @property
    def significant_bits(self) -> int:
        """Bits of a normal number, with the leading one that is not stored."""
        return self.mantissa_bits + 1

    @property
    def smallest_exponent(self) -> int:
        """Of the normal numbers, as a power of two."""
        return 2 - 2 ** (self.exponent_bits - 1)

    @property
    def largest_exponent(self) -> int:
        """Of the finite numbers, as a power of two."""
        return math.frexp(self.largest)[1] - 1

    @property
    def smallest_normal(self) -> float:
        """The smallest number with all significant bits."""
        return 2.0**self.smallest_exponent

    @property
    def smallest_subnormal(self) -> float:
        """The smallest number above zero."""
        return 2.0 ** (self.smallest_exponent - self.mantissa_bits)


LAYOUTS = {
    each.name: each
    for each in (
        Layout("fp32", 8, 23, (2 - 2.0**-23) * 2.0**127),
        Layout("tf32", 8, 10, (2 - 2.0**-10) * 2.0**127),
        Layout("fp16", 5, 10, 65504.0),
        Layout("bf16", 8, 7, (2 - 2.0**-7) * 2.0**127),
        Layout("e4m3", 4, 3, 448.0),
        Layout("e5m2", 5, 2, 57344.0),
        Layout("e2m1", 2, 1, 6.0),
    )
}
LOWEST, HIGHEST = -149, 128
"""Powers of two at the ends of the line of ranges: the smallest number of fp32, and beyond its largest"""
FIELDS = {"sign": "orange", "exponent": "blue", "mantissa": "green"}
SKYLINE = ("fp16", "bf16", "e4m3", "e5m2")
FROM, TO = -40, 20
"""Powers of two at the ends of the line of significant bits"""
SMALL, TINY, SCALE = 1e-5, 1e-8, 2.0**16
"""A number that fp16 keeps, one that it makes zero, and the scale that saves that one"""
RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
LOOKS = {"fp16": ("blue", "-"), "bf16": ("orange", "--"), "e4m3": ("green", "-."), "e5m2": ("violet", ":")}


def significant_bits(format: Layout, exponent: int) -> int:
    """Return how many significant bits a format has for numbers from ``2**exponent`` to twice that."""
    if exponent > format.largest_exponent:
        return 0
    return max(0, format.significant_bits - max(0, format.smallest_exponent - exponent))


def scientific_notation(value: float) -> str:
    """Return a number as one writes it: 1e-8."""
    return f"{value:g}".replace("e-0", "e-")


def power_of_ten(value: float) -> str:
    """Return a power of ten as one writes it: 10⁻³⁰."""
    power = round(math.log10(value))
    return f"10{str(power).translate(RAISED)}" if power else "1"


def largest_value_text(layout: Layout) -> str:
    """Return the largest number of a format: 65,504, or 3.4 × 10³⁸."""
    if layout.largest < 1e6:
        return f"{layout.largest:,.0f}"
    power = math.floor(math.log10(layout.largest))
    return f"{layout.largest / 10**power:.1f} × {power_of_ten(10.0**power)}"


# --- bits and ranges ---------------------------------------------------------------------------------------


def formats_to_scale() -> Figure:
    """Draw the bits of each format, and the range of the numbers above zero that it can hold."""
    every = list(LAYOUTS.values())
    words = "; ".join(
        f"{each.name}: 1, {each.exponent_bits} and {each.mantissa_bits} bits, from {each.smallest_subnormal:.2g} to "
        f"{each.largest:.3g}"
        for each in every
    )
    return show(
        lambda figure, theme: _draw_formats(figure, theme, every),
        alt="Seven formats, one per row. On the left each bit is a tile: sign, exponent, mantissa. On the right a bar "
        f"on a logarithmic line runs from the smallest number above zero to the largest. {words}. The bars of fp32, "
        "tf32 and bf16 are about equally long; those of fp16 and of the formats with fewer bits are short and lie "
        "around 1.",
        caption="Exponent bits decide how far a format reaches, mantissa bits how fine its spacing is. Bits and ranges "
        "are to scale. Each bar names the largest number; the pale ends are subnormal numbers, which have fewer "
        "significant bits.",
        size=(WIDE, 3.85),
        narrow=(4.6, 3.85),
        name="formats-to-scale",
        rows=[
            {"format": each.name, "sign_bits": 1, "exponent_bits": each.exponent_bits,
             "mantissa_bits": each.mantissa_bits, "smallest_subnormal": each.smallest_subnormal,
             "smallest_normal": each.smallest_normal, "largest": each.largest}
            for each in every
        ],
    )  # fmt: skip


def _draw_formats(figure: Canvas, theme: Theme, every: list[Layout]) -> None:
    ax, width, height = drawings.sheet(figure)
    bit, left = (2.4, 40.0) if is_narrow(figure) else (4.0, 48.0)
    start = left + 32 * bit + 56
    scale = (width - start - 14) / (HIGHEST - LOWEST)
    top, tall, high = height - 48, 27.0, 15.0
    drawings.label(ax, left, height - 12, "bits", across="left", bold=True)
    drawings.label(ax, start, height - 12, "range", across="left", bold=True)
    bottom = top - tall * (len(every) - 1) - 10
    for value in (1e-30, 1.0, 1e30) if is_narrow(figure) else (1e-30, 1e-15, 1.0, 1e15, 1e30):
        x = start + (math.log2(value) - LOWEST) * scale
        ax.plot([x, x], [bottom, top + high], color=theme.grid, linewidth=1, zorder=0)
        drawings.label(ax, x, bottom - 10, power_of_ten(value), size=10)
    for row, each in enumerate(every):
        y = top - row * tall
        drawings.label(ax, left - 6, y + high / 2, each.name, across="right", size=10)
        sizes = {"sign": 1, "exponent": each.exponent_bits, "mantissa": each.mantissa_bits}
        x = left
        for field, count in sizes.items():
            _bits(ax, x, y, bit, high, count, FIELDS[field])
            x += count * bit
        smallest, normal, largest = (
            start + (math.log2(value) - LOWEST) * scale
            for value in (each.smallest_subnormal, each.smallest_normal, each.largest)
        )
        drawings.box(ax, smallest, y, normal - smallest, high, colour="blue", strength=0.12)
        drawings.box(ax, normal, y, largest - normal, high, colour="blue", strength=0.4)
        counts = "·".join(str(count) for count in sizes.values())
        drawings.label(ax, x + 5, y + high / 2 - 1, counts, across="left", size=10)
        inside = largest > width - 60
        end, words = largest + (-5 if inside else 5), largest_value_text(each)
        drawings.label(ax, end, y + high / 2 - 1, words, across="right" if inside else "left", size=10)
    _names_of_fields(ax, left, bottom - 34)


def _bits(ax: Axes, x: float, y: float, wide: float, high: float, count: int, colour: str) -> None:
    """Draw the bits of a field as one shape."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path
    from matplotlib.transforms import Affine2D

    from gpuguide.plotting import palette

    tile = Path.unit_rectangle()
    tiles = (Affine2D().scale(wide - 0.6, high).translate(x + at * wide, y).transform_path(tile) for at in range(count))
    hue = palette.current().series[colour]
    ax.add_patch(PathPatch(Path.make_compound_path(*tiles), facecolor=(hue, 0.6), edgecolor="none"))


def _names_of_fields(ax: Axes, left: float, y: float) -> None:
    for field, colour in FIELDS.items():
        _bits(ax, left, y - 5, 10.6, 10, 1, colour)
        drawings.label(ax, left + 15, y, field, across="left", size=10)
        left += 32 + 5.2 * len(field)


# --- significant bits --------------------------------------------------------------------------------------


def bits_by_magnitude() -> Figure:
    """Draw how many significant bits four formats have for numbers of each magnitude, and what a scale does."""
    drawn = {name: LAYOUTS[name] for name in SKYLINE}
    half = drawn["fp16"]
    bits = {name: [significant_bits(each, exponent) for exponent in range(FROM, TO)] for name, each in drawn.items()}
    small, tiny = scientific_notation(SMALL), scientific_notation(TINY)
    kept = significant_bits(half, math.floor(math.log2(SMALL)))
    return show(
        lambda figure, theme: _draw_bits(figure, theme, bits),
        alt=f"Significant bits against the magnitude of a number, from {2.0**FROM:.0e} to {2.0**TO:.0e}. fp16 has "
        f"{half.significant_bits} bits from {half.smallest_normal:.1e} to {half.largest:.0f}, below that one bit "
        f"fewer with each halving, and none below {half.smallest_subnormal:.0e}. bf16 has "
        f"{drawn['bf16'].significant_bits} throughout, e4m3 {drawn['e4m3'].significant_bits} and e5m2 "
        f"{drawn['e5m2'].significant_bits} within narrow ranges. Marked are {small}, where fp16 has {kept} "
        f"bits, and {tiny}, where it has none and which an arrow moves to {TINY * SCALE:.1e}.",
        caption=f"Significant bits of a number, by its magnitude. In fp16, {small} has lost some of its bits and "
        f"{tiny} all of them. Multiplied by {SCALE:,.0f}, as by a loss scaler, {tiny} keeps all bits.",
        size=(WIDE, 3.4),
        narrow=(4.6, 3.4),
        name="bits-by-magnitude",
        rows=[
            {"power_of_two": FROM + place} | {f"{name}_bits": counts[place] for name, counts in bits.items()}
            for place in range(TO - FROM)
        ],
    )


def _draw_bits(figure: Canvas, theme: Theme, bits: dict[str, list[int]]) -> None:
    ax, width, height = drawings.sheet(figure)
    left, bottom, right = 38.0, 40.0, width - 14
    across, up = (right - left) / (TO - FROM), (height - bottom - 62) / 12
    for count in (0, 4, 8, 11):
        ax.plot([left, right], [bottom + count * up] * 2, color=theme.grid, linewidth=1, zorder=0)
        drawings.label(ax, left - 6, bottom + count * up, str(count), across="right", size=10)
    for power in (1e-12, 1e-9, 1e-6, 1e-3, 1.0, 1e3):
        x = left + (math.log2(power) - FROM) * across
        drawings.label(ax, x, bottom - 12, f"{power:.0e}" if power != 1 else "1", size=10)
    drawings.label(ax, left, height - 12, "significant bits", across="left", bold=True)
    drawings.label(ax, (left + right) / 2, bottom - 28, "magnitude of the number", size=10)
    for name, counts in bits.items():
        colour, style = LOOKS[name]
        xs = [left + (place + end) * across for place in range(len(counts)) for end in (0, 1)]
        ys = [bottom + count * up for count in counts for _ in (0, 1)]
        if name == "fp16":
            ax.fill_between(xs, bottom, ys, color=theme.series[colour], alpha=0.15, linewidth=0)
        ax.plot(xs, ys, color=theme.series[colour], linestyle=style, linewidth=2)
    for name, exponent, count in (("fp16", 6, 11), ("bf16", -34, 8), ("e4m3", 1, 4), ("e5m2", -10, 3)):
        drawings.label(ax, left + (exponent - FROM) * across, bottom + count * up + 9, name, size=10, bold=True)
    level = bottom + 12 * up + 14
    for value, words in ((TINY, scientific_notation(TINY)), (SMALL, scientific_notation(SMALL))):
        x = left + (math.log2(value) - FROM) * across
        drawings.moment(ax, x, bottom, level)
        drawings.label(ax, x, level + 8, words, size=10)
    ends = [left + (math.log2(value) - FROM) * across for value in (TINY, TINY * SCALE)]
    y = bottom + 11.6 * up
    drawings.arrow(ax, (ends[0], y), (ends[1], y), colour="red")
    drawings.label(ax, ends[1] + 4, y + 8, f"× {SCALE:,.0f}", across="left", size=10)
