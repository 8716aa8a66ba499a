"""The calculators: what the formulas of a cost model say, for what a reader fills in.

:mod:`~gpuguide.site.records.calculators.data` is what their scripts know, and
:mod:`~gpuguide.site.records.calculators.directives` puts it into pages.
"""

from gpuguide.site.records.calculators.directives import connect

__all__ = ["connect"]
