"""Fonts reduced to what the site writes with them, as WOFF2."""

from __future__ import annotations

import io
import logging
from pathlib import Path
from typing import Any


def reduce_font(font: Path, characters: str, **options: Any) -> bytes:
    """Return a font as WOFF2 with only the ``characters`` that it has of these. The same input gives the same bytes.

    Parameters
    ----------
    font : Path
        A font in any format that fontTools reads.
    characters : str
        What is written with it.
    **options : Any
        Further options of fontTools' subsetter, such as ``layout_features``.
    """
    from fontTools import subset  # only when a font is made: a build in which nothing changed stays quick

    logging.getLogger("fontTools").setLevel(logging.WARNING)  # it reports every glyph, and Sphinx shows it
    chosen = subset.Options(flavor="woff2", hinting=False, **options)
    loaded = subset.load_font(str(font), chosen)
    subsetter = subset.Subsetter(chosen)
    subsetter.populate(text=characters)
    subsetter.subset(loaded)
    written = io.BytesIO()
    loaded.flavor = "woff2"
    loaded.recalcTimestamp = False
    loaded.save(written)
    return written.getvalue()
