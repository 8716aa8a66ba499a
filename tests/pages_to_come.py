"""Benchmarks that are declared, and stand on no page yet: their records come with the page."""

BENCHMARKS = {
    "42-more-than-one-gpu": {"exchange", "frame-queries", "larger-than-memory", "pds-h", "two-gpu-queries"},
}
WITHOUT_PAGE = set[str]().union(*BENCHMARKS.values())
