"""Colours that everyone can tell apart and read, in both schemes."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations

import numpy as np
import pytest

from gpuguide import plotting
from gpuguide.errors import GpuguideError
from gpuguide.measure import benchmark as declarations
from gpuguide.plotting import palette

ROWS = ("training-ladder", "memory-levers", "optimizer-step", "gradient-sum")
"""Benchmarks of whose figures each row has its name"""
FIGURES = [name for name in declarations.names() if name not in ("ceilings", *ROWS)]
"""Benchmarks whose contenders stand in one figure; the ceilings are never drawn together"""
THEMES = [palette.LIGHT, palette.DARK]
VISION = {
    "normal": np.eye(3),
    # G. Machado, M. Oliveira, L. Fernandes, "A physiologically-based model for simulation of color vision
    # deficiency", IEEE TVCG 15(6), 2009: severity 1, on linear RGB
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
TO_XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
)


def linear(colour: str) -> np.ndarray:
    """Return linear RGB from 0 to 1."""
    value = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


def contrast(one: str, other: str) -> float:
    """Return the contrast of WCAG 2.1."""
    low, high = sorted(float(linear(colour) @ TO_XYZ[1]) for colour in (one, other))
    return (high + 0.05) / (low + 0.05)


def lab(rgb: np.ndarray) -> np.ndarray:
    """Return CIELAB coordinates of linear RGB."""
    x, y, z = (np.cbrt(v) if v > 0.008856 else 7.787 * v + 16 / 116 for v in TO_XYZ @ np.clip(rgb, 0, 1) / WHITE)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


WHITE = np.array([0.95047, 1, 1.08883])


@pytest.mark.parametrize("theme", THEMES, ids=lambda theme: theme.scheme)
def test_contrast(theme: palette.Theme) -> None:
    for name, colour in {**theme.series, "ceiling": theme.ceiling, "faint": theme.faint}.items():
        assert contrast(colour, theme.background) >= 3, name
    assert contrast(theme.text, theme.background) >= 7


@pytest.mark.parametrize("vision", VISION)
@pytest.mark.parametrize("theme", THEMES, ids=lambda theme: theme.scheme)
def test_series_can_be_told_apart(theme: palette.Theme, vision: str) -> None:
    seen = {name: lab(VISION[vision] @ linear(colour)) for name, colour in theme.series.items()}
    for one, other in combinations(seen, 2):
        assert np.linalg.norm(seen[one] - seen[other]) >= 7, (one, other)


def test_both_schemes_have_the_same_series() -> None:
    assert set(palette.LIGHT.series) == set(palette.DARK.series)
    assert {style.colour for style in palette.CONTENDERS.values()} <= set(palette.LIGHT.series)


@pytest.mark.parametrize("theme", THEMES, ids=lambda theme: theme.scheme)
def test_a_colour_has_one_role(theme: palette.Theme) -> None:
    assert len(set(theme.colours())) == len(theme.colours())


@pytest.mark.parametrize("family", ["matmul-", "h2d-", "d2h-"])
def test_contenders_of_one_figure_differ_in_colour_and_marker(family: str) -> None:
    different(name for name in palette.CONTENDERS if name.startswith(family))


@pytest.mark.parametrize("name", FIGURES)
def test_contenders_of_one_benchmark_differ_in_colour_and_marker(name: str) -> None:
    different(declarations.get(name).contenders)


def test_every_contender_has_a_style_and_every_style_a_contender() -> None:
    assert set(palette.CONTENDERS) == {
        contender for name in declarations.names() for contender in declarations.get(name).contenders
    }


def test_legends_call_a_contender_by_its_label_or_else_by_its_name() -> None:
    assert palette.label("fa4") == palette.style("fa4").label != "fa4"
    assert (palette.label("copy"), palette.label("of-a-reader")) == ("copy", "of-a-reader")


def different(contenders: Iterable[str]) -> None:
    styles = {name: palette.style(name) for name in contenders}
    assert len({style.marker for style in styles.values()}) == len(styles)
    for one, other in combinations(sorted(styles), 2):
        assert styles[one].colour != styles[other].colour or other.startswith(f"{one}-"), (one, other)


def test_a_contender_has_one_colour_in_a_scheme() -> None:
    with palette.using(palette.DARK):
        dark = plotting.colour("copy")
    assert (dark, plotting.colour("copy")) == (palette.DARK.series["blue"], palette.PRINT.series["blue"])


def test_an_unknown_contender_is_named_with_the_near_ones() -> None:
    with pytest.raises(GpuguideError, match="matmul-bf16"):
        plotting.colour("matmul-bf61")
