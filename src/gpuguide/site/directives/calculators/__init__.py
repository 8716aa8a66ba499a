"""The calculators: what the formulas of a cost model say, for what a reader fills in.

:mod:`~gpuguide.site.directives.calculators.data` is what their scripts know, and
:mod:`~gpuguide.site.directives.calculators.directives` puts it into pages.
"""

from gpuguide.site.directives.calculators.directives import connect

__all__ = ["connect"]
