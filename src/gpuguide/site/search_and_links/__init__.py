"""How readers find things.

Names of the library in code lead to the API reference (:mod:`~gpuguide.site.search_and_links.code_links`, by what
:mod:`~gpuguide.site.search_and_links.code_names` reads in the code), terms to the glossary
(:mod:`~gpuguide.site.search_and_links.glossary_links`). Search finds what stands on pages
(:mod:`~gpuguide.site.search_and_links.search_places`), terms, GPUs, records and names
(:mod:`~gpuguide.site.search_and_links.search_entries`). A page leads to its source and to a place to report a problem
(:mod:`~gpuguide.site.search_and_links.repository_links`), and an address without a page to the pages there are
(:mod:`~gpuguide.site.search_and_links.not_found`). Search engines get a list of the pages
(:mod:`~gpuguide.site.search_and_links.sitemap`) and a sentence about each
(:mod:`~gpuguide.site.search_and_links.descriptions`), and readers of feeds what changed
(:mod:`~gpuguide.site.search_and_links.change_feed`). Pages of source lead back to what is said of each name
(:mod:`~gpuguide.site.search_and_links.source_pages`).
"""
