"""Where the text of an SVG stands, and what of it is cut off or too small to read.

Widths are those of the font that matplotlib lays text out with, which is wider than the fonts of the page.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from xml.etree import ElementTree

SLACK = 1.0
"""Points by which a box may pass the edge: boxes hold the room between letters too"""
SCREEN = 334.0
"""CSS pixels that a figure has on a screen of 360"""
SMALLEST = 10.0
"""CSS pixels"""


@dataclass(frozen=True)
class TextBox:
    """One piece of text, and the upright box around it, in the units of the drawing."""

    text: str
    size: float
    left: float
    top: float
    right: float
    bottom: float


def text_boxes(svg: str) -> list[TextBox]:
    """Return the box of each text of an SVG as matplotlib writes it."""
    return list(_boxes(ElementTree.fromstring(svg)))


def view_box(svg: str) -> tuple[float, float]:
    """Return the width and the height of the drawing."""
    width, height = ElementTree.fromstring(svg).attrib["viewBox"].split()[2:]
    return float(width), float(height)


def cut_off(svg: str) -> list[str]:
    """Return the texts of an SVG that do not lie within it."""
    width, height = view_box(svg)
    return [
        box.text for box in text_boxes(svg) if min(box.left, box.top, width - box.right, height - box.bottom) < -SLACK
    ]


def too_small(svg: str, screen: float = SCREEN) -> list[str]:
    """Return the texts of an SVG that are smaller than ten pixels where it is shown ``screen`` pixels wide."""
    scale = screen / view_box(svg)[0]
    return [box.text for box in text_boxes(svg) if box.size * scale < SMALLEST - 0.05]


def _boxes(element: ElementTree.Element, across: float = 0.0, down: float = 0.0) -> Iterator[TextBox]:
    moved = re.search(r"translate\(([-\d.]+)[ ,]+([-\d.]+)\)", element.get("transform", ""))
    if moved:
        across, down = across + float(moved[1]), down + float(moved[2])
    if element.tag.endswith("}text"):
        yield _box(element, across, down)
        return
    for child in element:
        yield from _boxes(child, across, down)


def _box(element: ElementTree.Element, across: float, down: float) -> TextBox:
    text = "".join(element.itertext()).strip()
    inner = [element, *element]
    size = min(_size(each) for each in inner if "font-size" in each.get("style", "") or each.get("font-size"))
    mono = "monospace" in element.get("style", "") + element.get("class", "")
    width, height = _extent(text, size, mono)
    x, y = across + float(element.get("x", 0)), down + float(element.get("y", 0))
    share = {"middle": 0.5, "end": 1.0}.get(_anchor(element), 0.0)
    corners = [(x - share * width + right, y - height + below) for right in (0.0, width) for below in (0.0, height)]
    turned = re.search(r"rotate\(([-\d.]+)(?: ([-\d.]+) ([-\d.]+))?\)", element.get("transform", ""))
    if turned:
        centre = (float(turned[2]), float(turned[3])) if turned[2] else (across, down)
        corners = [_rotate(corner, math.radians(float(turned[1])), centre) for corner in corners]
    xs, ys = zip(*corners, strict=True)
    return TextBox(text, size, min(xs), min(ys), max(xs), max(ys))


def _size(element: ElementTree.Element) -> float:
    found = re.search(r"font-size:\s*([\d.]+)", element.get("style", ""))
    return float(found[1] if found else element.get("font-size", 0))


def _anchor(element: ElementTree.Element) -> str:
    found = re.search(r"text-anchor:\s*(\w+)", element.get("style", ""))
    return found[1] if found else element.get("text-anchor", "start")


def _rotate(point: tuple[float, float], angle: float, centre: tuple[float, float]) -> tuple[float, float]:
    x, y = point[0] - centre[0], point[1] - centre[1]
    return (
        centre[0] + x * math.cos(angle) - y * math.sin(angle),
        centre[1] + x * math.sin(angle) + y * math.cos(angle),
    )


@cache
def _extent(text: str, size: float, mono: bool) -> tuple[float, float]:
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    font = FontProperties(family="DejaVu Sans Mono" if mono else "DejaVu Sans", size=size)
    width, height, _ = text_to_path.get_text_width_height_descent(text.replace("$", r"\$"), font, False)
    return float(width), float(height)
