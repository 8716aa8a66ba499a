"""How Sphinx builds the site. What is particular to it is in src/gpuguide/site; the rest is set here."""

from __future__ import annotations

import os
from pathlib import Path

import gpuguide

HERE = Path(__file__).parent

project = "gpuguide"
author = "The gpuguide authors"
copyright = "The gpuguide authors. Text and figures: CC BY 4.0. Code: MIT"
version = release = gpuguide.__version__
language = "en"
smartquotes_action = "qe"  # quotes and ellipses, but no dashes: an option such as --nodes keeps its hyphens

extensions = [
    "gpuguide.site.extension",  # figures, numbers from records, claims, hardware, formulas, execution digests
    "myst_nb",  # pages are Markdown, and their cells run
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",  # the API reference leads to the source of what it describes
    "sphinx_copybutton",
]

# Where the site and its repository are, if that is known. Without the first, notebooks have links to other sites only,
# and are installed from the zip, the links of the page for a wrong address begin at the root of the host, and pages
# name no picture to those who share them; without the second, no link opens a notebook in Colab, and pages have no
# links to edit them and to report a problem.
html_baseurl = os.environ.get("GPUGUIDE_SITE", "")
gpuguide_repository = os.environ.get("GPUGUIDE_REPOSITORY", "")

# The repository is the source folder. What the patterns leave out is walked all the same unless it is excluded.
include_patterns = ["index.md", "docs/**", "tutorials/**"]
exclude_patterns = ["_build", ".venv", ".git", "**/.ipynb_checkpoints", "tutorials/template.md"]

# --- Markdown ---------------------------------------------------------------------------------------------

myst_enable_extensions = ["attrs_block", "attrs_inline", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
html_math_renderer = "mathml"

# --- execution --------------------------------------------------------------------------------------------

# Pages run beside each other before MyST-NB looks for their outputs (gpuguide.site.execution); it runs none itself.
nb_execution_mode = "cache"
nb_execution_cache_path = str(HERE / "_build" / ".jupyter_cache")  # a relative path would depend on where one stands
nb_execution_timeout = 120  # seconds a cell
nb_output_stderr = "remove-warn"  # a library's warning on a page is a fault of the page
nb_merge_streams = True

# `make page` runs one page; the others are read so that links to them work.
if only := os.environ.get("GPUGUIDE_PAGE"):
    pages = [path.relative_to(HERE).as_posix() for path in (*HERE.glob("docs/*.md"), *HERE.glob("tutorials/*.md"))]
    nb_execution_excludepatterns = ["index.md", *(page for page in pages if page != f"{only}.md")]

# --- API reference ----------------------------------------------------------------------------------------

autodoc_member_order = "bysource"
autodoc_preserve_defaults = True  # as written: the value of a path is one of the machine that builds
autodoc_use_type_comments = False  # there are none, and to look for them reads the source of every function
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
napoleon_google_docstring = False
napoleon_use_rtype = False
copybutton_selector = "div:not(.output) > div.highlight pre"  # code, not outputs

# --- looks ------------------------------------------------------------------------------------------------

html_theme = "pydata_sphinx_theme"
html_title = "gpuguide"
html_favicon = "src/gpuguide/site/theme/static/favicon.svg"
html_show_sourcelink = False
html_copy_source = False
# Thousands of names from A to Z would be the heaviest page here; the search and the reference lead to them.
html_use_index = False
html_sidebars = {"index": [], "**": ["sidebar-nav-bs"]}
pygments_style = "a11y-high-contrast-light"
html_theme_options = {
    "logo": {"text": "gpuguide"},
    "navbar_center": ["header-sections"],
    "navbar_end": ["theme-switcher"],
    "article_header_start": ["eyebrow"],
    "secondary_sidebar_items": {"**": ["page-toc"], "index": []},
    "article_footer_items": ["repository-links"],
    "footer_start": ["copyright"],
    "footer_end": ["version"],
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
