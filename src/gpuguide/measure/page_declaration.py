"""The declaration in a page's front matter, and the records that its code may read while the site is built."""

from __future__ import annotations

import os

from gpuguide.errors import GpuguideError
from gpuguide.measure import reference_gpu
from gpuguide.measure.page_gpu import CPU, kind

DECLARED_VARIABLE = "GPUGUIDE_DECLARED"
"""While the site is built: the benchmarks that the page declares in its front matter, separated by commas"""


def check_benchmark(benchmark: str) -> None:
    """Raise if a page that is being built reads a benchmark which its front matter does not name."""
    declared = os.environ.get(DECLARED_VARIABLE)
    if declared is not None and benchmark not in declared.split(","):
        raise GpuguideError(describe_undeclared_record(benchmark))


def check_device(device: str) -> None:
    """Raise if a page that is being built asks for the record of another GPU than its own."""
    if DECLARED_VARIABLE in os.environ and kind(device) not in (reference_gpu.slug(), CPU):
        raise GpuguideError(describe_other_gpu(device))


def describe_other_gpu(device: str) -> str:
    """Return the error for a page that asks for the record of another GPU than its own."""
    return (
        f"This page speaks of {reference_gpu.slug()}, and {device} is another GPU: a page never mixes two. Leave the "
        f"device out, or name that GPU in the page's front matter: gpuguide: {{gpu: {kind(device)}}}."
    )


def describe_undeclared_record(benchmark: str) -> str:
    """Return the error for a page that reads a record and does not declare it."""
    return (
        f"This page reads the record {benchmark!r} and does not declare it. Add it to the page's front matter: "
        f"gpuguide: {{benchmarks: [{benchmark}]}}."
    )
