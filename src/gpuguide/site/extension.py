"""The Sphinx extension behind the site: each module holds one idea, and this one connects them.

Nothing here imports torch or matplotlib, so that a build in which nothing changed stays quick.
"""

from __future__ import annotations

import gc
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuguide.measure import digest
from gpuguide.measure.digest import remembered
from gpuguide.site.directives import (
    benchmark_list,
    calculators,
    claims_table,
    cost_card,
    figures,
    hardware_table,
    landing,
    numbers,
    record_downloads,
    record_list,
    status,
    words,
    your_records,
)
from gpuguide.site.execution import faults, page_digests, page_gpus, running, watching
from gpuguide.site.notebooks import downloads
from gpuguide.site.pages import addresses, asides, cell_folds, folds, library_code, skipped_cells, tabs
from gpuguide.site.search_and_links import (
    change_feed,
    code_links,
    descriptions,
    glossary_links,
    navigation,
    not_found,
    repository_links,
    search_entries,
    sitemap,
    source_pages,
    type_names,
)
from gpuguide.site.theme import assets, attribute_texts, mathematics, social_preview, stylesheet

if TYPE_CHECKING:
    from sphinx.application import Sphinx

PARTS = (
    addresses,
    asides,
    assets,
    attribute_texts,
    benchmark_list,
    calculators,
    cell_folds,
    change_feed,
    claims_table,
    code_links,
    cost_card,
    descriptions,
    downloads,
    faults,
    figures,
    folds,
    glossary_links,
    hardware_table,
    landing,
    library_code,
    mathematics,
    navigation,
    not_found,
    numbers,
    page_digests,
    page_gpus,
    record_downloads,
    record_list,
    repository_links,
    running,
    search_entries,
    sitemap,
    skipped_cells,
    social_preview,
    source_pages,
    status,
    stylesheet,
    tabs,
    type_names,
    watching,
    words,
    your_records,
)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register every part. Called by Sphinx.

    The environment's version is a digest of this extension and all that it imports: after a change to any of it
    every page is read again, and none is executed again.
    """
    gc.set_threshold(100_000, 20, 20)  # a tenth of the time of a build went into looking for garbage
    remembered.keep_in(Path(app.doctreedir) / "source.json", digest.PACKAGE_FOLDER)
    app.connect("build-finished", lambda app, exception: remembered.save(), priority=999)  # when nothing more is asked
    for part in PARTS:
        part.connect(app)
    own = digest.source_digest(digest.transitive(["gpuguide.site.extension"]))
    return {
        "version": "1",
        "env_version": int(own.removeprefix("sha256:")[:12], 16),
        "parallel_read_safe": False,  # what is wrong on a page is noted in the process that reads it
        "parallel_write_safe": True,  # but only whole builds would gain, and a second at most
    }
