"""The published records that text speaks of: those that pages and rows of the ledger read, each on its own GPU."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gpuguide.claims import pages, reading
from gpuguide.measure import page_gpu, reference_gpu
from gpuguide.measure.records import Record


def select_quoted(records: Iterable[Record]) -> list[Record]:
    """Return those of some published records that text may speak of, so that they must be fresh.

    Text may speak of a record if a page that declares the benchmark, or a row of the ledger that reads it, is of the
    record's GPU; and of a processor's record. A benchmark that no page declares and no row reads is that of the default
    GPU.
    """
    records = list(records)
    known = pages.all_pages() if records else []
    if not known:
        return [record for record in records if reference_gpu.is_quotable(record)]
    devices: dict[str, set[str]] = {}
    for page in known:
        for name in page.reads:
            devices.setdefault(name, set()).add(page.device)
    for name, device in _read_by_rows():
        devices.setdefault(name, set()).add(device)
    usual = {reference_gpu.default_slug()}
    return [
        record
        for record in records
        if record.device == page_gpu.CPU or page_gpu.kind(record.device) in devices.get(record.benchmark, usual)
    ]


def _read_by_rows() -> Iterator[tuple[str, str]]:
    """Yield each benchmark that a row of the ledger reads, with the GPU on which the row is checked."""
    for claim in reading.load():
        for name in claim.benchmarks:
            yield name, claim.gpu or reference_gpu.default_slug()
