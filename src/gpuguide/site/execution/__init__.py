"""How pages run: each when something that it uses has changed, beside each other, and with every fault named.

Before Sphinx reads, the pages that changed are known (:mod:`~gpuguide.site.execution.page_digests`, and
:mod:`~gpuguide.site.execution.watching` for what they show of records and other pages). Those whose outputs are not in
the cache (:mod:`~gpuguide.site.execution.outputs_cache`) are given to a process of their own
(:mod:`~gpuguide.site.execution.running`), which runs as many of them at a time as there are cores
(:mod:`~gpuguide.site.execution.side_by_side`), each in a kernel that begins with the heavy imports done
(:mod:`~gpuguide.site.execution.kernels`). Meanwhile Sphinx reads the other pages, and waits for a page's outputs only
when it comes to it. What is wrong on a page is said with its place (:mod:`~gpuguide.site.execution.faults`,
:mod:`~gpuguide.site.execution.cell_faults`, :mod:`~gpuguide.site.execution.declared_records`).
"""
