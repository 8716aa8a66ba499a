"""What the site says from records, datasheets and the ledger of claims.

In the text: numbers (:mod:`~gpuguide.site.directives.numbers`), figures (:mod:`~gpuguide.site.directives.figures`),
what a page costs to run (:mod:`~gpuguide.site.directives.cost_card`), a reader's own results beside ours
(:mod:`~gpuguide.site.directives.your_records`). As tables: records and benchmarks
(:mod:`~gpuguide.site.directives.record_list`, :mod:`~gpuguide.site.directives.benchmark_list`), GPUs
(:mod:`~gpuguide.site.directives.hardware_table`), claims (:mod:`~gpuguide.site.directives.claims_table`), the state of
pages and records (:mod:`~gpuguide.site.directives.status`), the path on the first page
(:mod:`~gpuguide.site.directives.landing`). To try: the calculators (:mod:`~gpuguide.site.directives.calculators`). To
take away: :mod:`~gpuguide.site.directives.record_downloads`.
"""
