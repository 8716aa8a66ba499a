"""The execution cache of MyST-NB: is a page in it, and how what a page printed gets into it.

MyST-NB looks a page up by its cells, their metadata and its kernel's description, which holds the page's digest. It
would run a page that it does not find; here pages are run before it looks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sphinx.errors import SphinxError

from gpuguide.site.execution import page_digests
from gpuguide.site.pages import page_source

if TYPE_CHECKING:
    from sphinx.environment import BuildEnvironment


def folder(env: BuildEnvironment) -> str:
    """Return where the cache is."""
    return str(vars(env)["mystnb_config"].execution_cache_path)


def notebook(env: BuildEnvironment, docname: str) -> Any:
    """Return an executed page as MyST-NB reads it, without outputs.

    Raises
    ------
    SphinxError
        If MyST-NB does not take the page for a notebook.
    """
    from myst_nb.core.read import create_nb_reader

    path = env.doc2path(docname)
    text = page_source.mark_digest(Path(path).read_text(encoding="utf-8"), page_digests.get_digest(env, docname) or "")
    reader = create_nb_reader(path, vars(env)["myst_config"], vars(env)["mystnb_config"], text)
    if reader is None:
        raise SphinxError(f"{path}: the page is no notebook. Give it the front matter of the other tutorials.")
    return reader.read(text)


def holds(cache: Any, page: Any) -> bool:
    """Return whether the cache holds a page's outputs, whole: a build may have been stopped while it wrote them."""
    try:
        cache.get_cache_bundle(cache.match_cache_notebook(page).pk)
    except (KeyError, json.JSONDecodeError):
        return False
    except Exception as error:  # what nbformat raises has no name that both of its readers share
        if type(error).__module__.startswith("nbformat"):
            return False
        raise
    return True


def keep(cache: Any, page: Any, path: str, seconds: float) -> None:
    """Put a page that has run into the cache, as MyST-NB would."""
    from jupyter_cache.base import CacheBundleIn

    bundle = CacheBundleIn(page, path, data={"execution_seconds": seconds})
    cache.cache_notebook_bundle(bundle, check_validity=False, overwrite=True)


def last_seconds(cache: Any) -> Mapping[str, float]:
    """Return how long each page took when it last ran, by its path."""
    records = sorted(cache.list_cache_records(), key=lambda record: record.pk)
    return {record.uri: (record.data or {}).get("execution_seconds", 0.0) for record in records}
