"""What the site says from records, datasheets and the ledger of claims.

In the text: numbers (:mod:`~gpuguide.site.records.numbers`), figures (:mod:`~gpuguide.site.records.figures`), what a
page costs to run (:mod:`~gpuguide.site.records.cost_card`), a reader's own results beside ours
(:mod:`~gpuguide.site.records.your_records`). As tables: records and benchmarks
(:mod:`~gpuguide.site.records.record_list`, :mod:`~gpuguide.site.records.benchmark_list`), GPUs
(:mod:`~gpuguide.site.records.hardware_table`), claims (:mod:`~gpuguide.site.records.claims_table`), the state of pages
and records (:mod:`~gpuguide.site.records.status`), the path on the first page
(:mod:`~gpuguide.site.records.landing`). To try: the calculators
(:mod:`~gpuguide.site.records.calculators`). To take away: :mod:`~gpuguide.site.records.record_downloads`.
"""
