"""The command that builds the site: ``python -m gpuguide.site.build``, behind ``make site`` and ``make page``.

It runs Sphinx in its own process and prints what a person wants to read (:mod:`~gpuguide.site.build.screen`);
everything else goes to a log that it names. One build at a time works in a tree, and one that was stopped leaves the
next one nothing half done (:mod:`~gpuguide.site.build.half_done`).
"""
