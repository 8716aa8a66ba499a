"""The look of the site: templates and styles on top of the theme."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.config import Config

THEME = Path(__file__).parent


def connect(app: Sphinx) -> None:
    """Register this part with Sphinx."""
    app.connect("config-inited", add_paths)
    app.connect("html-page-context", defer_scripts, priority=900)
    app.add_css_file("gpuguide.css")
    app.add_js_file("edges.js", loading_method="defer")


def add_paths(app: Sphinx, config: Config) -> None:
    """Let Sphinx find our templates and static files before those of the theme."""
    config.templates_path = [*config.templates_path, str(THEME / "templates")]
    config.html_static_path = [*config.html_static_path, str(THEME / "static")]


def defer_scripts(app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: object) -> None:
    """Let no script hold up the drawing of a page. They run in their order, and before the theme looks at the page."""
    if pagename == "search":  # its own script needs them at once
        return
    context["script_files"] = [defer_script(script) for script in context.get("script_files", [])]


def defer_script(script: Any) -> Any:
    """Return a script that waits until the page is there. The given one, which all pages share, stays as it is."""
    name = str(getattr(script, "filename", ""))
    if not name or name.endswith("documentation_options.js"):  # scripts within the page write to its options
        return script
    waiting = copy.deepcopy(script)
    waiting.attributes.setdefault("defer", "defer")
    return waiting
