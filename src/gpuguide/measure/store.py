"""Look up records: published ones, and a reader's own in the overlay folder."""

from __future__ import annotations

import re
from pathlib import Path

from gpuguide.errors import GpuguideError, unknown
from gpuguide.measure import digest, folders, page_declaration, records, reference_gpu
from gpuguide.measure.records import Record


def load_published(benchmark: str, device: str | None = None) -> Record:
    """Return the published record of a benchmark.

    Parameters
    ----------
    benchmark : str
        For example ``"copy-size"``.
    device : str, optional
        The device's slug. By default the reference GPU; where a benchmark needs several of it, the fewest that have
        a record. ``"8x"`` is eight of it.

    Raises
    ------
    GpuguideError
        If there is no such record, or a page asks for one that its front matter does not declare, or for one of
        another GPU than its own.
    """
    page_declaration.check_benchmark(benchmark)
    known = digest.benchmark_modules()
    if benchmark not in known:
        raise unknown("benchmark", benchmark, known)
    if device is None:
        wanted = reference_gpu.slugs()
    else:
        wanted = [f"{device}-{reference_gpu.slug()}" if re.fullmatch(r"\d+x", device) else device]
        page_declaration.check_device(wanted[0])
    for slug in wanted:
        path = folders.published_folder() / slug / f"{benchmark}.json"
        if path.exists():
            return records.load(path)
    if device is None:
        reference_gpu.check_records()
    elif wanted[0] not in folders.list_devices():
        raise unknown("device with published records", wanted[0], folders.list_devices())
    raise GpuguideError(
        f"There is no published record of {benchmark!r} on {describe_measured_devices(benchmark, wanted[0])}. Measure "
        f"it with 'gpuguide bench run {benchmark} --out DIR' and 'gpuguide records import --publish DIR'."
    )


def describe_measured_devices(benchmark: str, device: str) -> str:
    """Return a device without a published record of a benchmark, and which ones have one: ``a, only on b``."""
    held = [
        other for other in folders.list_devices() if (folders.published_folder() / other / f"{benchmark}.json").exists()
    ]
    return f"{device}, only on {', '.join(held)}" if held else device


def load_mine(benchmark: str) -> list[Record]:
    """Return the reader's own records of a benchmark, one for each device that they measured."""
    page_declaration.check_benchmark(benchmark)
    folder = folders.overlay_folder()
    return [records.load(path) for path in sorted(folder.glob(f"*/{benchmark}.json"))] if folder else []


def is_mine(record: Record) -> bool:
    """Return whether a record lies in the reader's own folder."""
    folder = folders.overlay_folder()
    return folder is not None and record.path is not None and record.path.is_relative_to(folder)


def load_all(folder: Path, benchmark: str = "*") -> list[Record]:
    """Return every record in a folder, or those of one benchmark, by device and benchmark."""
    return [records.load(path) for path in sorted(folder.glob(f"*/{benchmark}.json"))]


def load_all_published(benchmark: str = "*") -> list[Record]:
    """Return every published record, or those of one benchmark on every device."""
    return load_all(folders.published_folder(), benchmark)


def load_all_mine() -> list[Record]:
    """Return every record of the reader's own."""
    folder = folders.overlay_folder()
    return load_all(folder) if folder else []
