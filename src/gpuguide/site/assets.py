"""The look of the site: templates and styles on top of the theme."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.config import Config

THEME = Path(__file__).with_name("theme")


def connect(app: Sphinx) -> None:
    """Register this part with Sphinx."""
    app.connect("config-inited", add_paths)
    app.add_css_file("gpuguide.css")


def add_paths(app: Sphinx, config: Config) -> None:
    """Let Sphinx find our templates and static files before those of the theme."""
    config.templates_path = [*config.templates_path, str(THEME / "templates")]
    config.html_static_path = [*config.html_static_path, str(THEME / "static")]
