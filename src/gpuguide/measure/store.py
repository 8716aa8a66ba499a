"""Where records are kept: the published ones in the package, a reader's own in an overlay folder beside them."""

from __future__ import annotations

import functools
import os
import re
from pathlib import Path

from gpuguide.errors import GpuguideError, unknown
from gpuguide.measure import digest, page_gpu, records
from gpuguide.measure.records import Record

CPU = page_gpu.CPU
kind = page_gpu.kind
OVERLAY_VARIABLE = "GPUGUIDE_RECORDS"
DECLARED_VARIABLE = "GPUGUIDE_DECLARED"
"""While the site is built: the benchmarks that the page declares in its front matter, separated by commas"""


def published_folder() -> Path:
    """Return the folder of the records that come with gpuguide."""
    return digest.PACKAGE_FOLDER / "records"


def overlay_folder() -> Path | None:
    """Return the folder of the reader's own records, to read from.

    It is what ``GPUGUIDE_RECORDS`` names; without the variable a folder among the user's data, which may be absent;
    with the variable set and empty there is none.

    Raises
    ------
    GpuguideError
        If the variable names a folder that does not exist, or a file.
    """
    folder = overlay_to_write()
    if folder is not None and os.environ.get(OVERLAY_VARIABLE) and not folder.is_dir():
        raise GpuguideError(
            f"{OVERLAY_VARIABLE} names the folder {folder}, which does not exist. Correct the name, or fill the folder "
            f"with 'gpuguide bench run' or 'gpuguide records import'. Without records of your own, leave the variable "
            "unset."
        )
    return folder


def overlay_to_write() -> Path | None:
    """Return the folder of the reader's own records, which need not exist yet.

    A relative name counts from the folder in which it is first asked for, and is absolute from then on, also for the
    processes that this one starts: pages run in folders of their own.

    Raises
    ------
    GpuguideError
        If ``GPUGUIDE_RECORDS`` names a file.
    """
    named = os.environ.get(OVERLAY_VARIABLE)
    if named is None:
        import platformdirs

        return Path(platformdirs.user_data_dir("gpuguide", appauthor=False)) / "records"
    if not named:
        return None
    folder = Path(named).expanduser().absolute()
    os.environ[OVERLAY_VARIABLE] = str(folder)
    if folder.exists() and not folder.is_dir():
        raise GpuguideError(f"{OVERLAY_VARIABLE} names {folder}, which is a file. Name a folder of records in it.")
    return folder


# --- the reference GPU -----------------------------------------------------------------------------------


def reference_file() -> Path:
    """Return the file that names the reference GPU."""
    return digest.PACKAGE_FOLDER / "records" / "reference.toml"


def reference_device() -> str:
    """Return the slug of the GPU whose records prose, figures and stamps speak of: the page's, or the default.

    Raises
    ------
    GpuguideError
        If the page or the setting does not name one GPU.
    """
    named = page_gpu.get_current_gpu()
    return page_gpu.check_gpu(named.device, named.place) if named.device else default_device()


def default_device() -> str:
    """Return the slug of the GPU that pages speak of which name none.

    Raises
    ------
    GpuguideError
        If the setting does not name one device.
    """
    return page_gpu.default_in(reference_file())


def reference_record() -> Record:
    """Return a record of the reference GPU, whichever comes first: all say the device's name.

    Raises
    ------
    GpuguideError
        If there is none.
    """
    check_reference()
    return load(next(path for device in reference_devices() for path in _files_of(device)))


def check_reference() -> None:
    """Raise if the page or the setting names a GPU without published records, with those that have some."""
    if not any(_files_of(device) for device in reference_devices()):
        named = page_gpu.get_current_gpu()
        others = ", ".join(sorted({kind(device) for device in _devices()} - {CPU})) or "no GPU"
        raise GpuguideError(
            f"{named.place if named.device else reference_file()} names the device {reference_device()!r}, of which "
            f"there are no published records. There are records of {others}."
        )


def reference_devices() -> list[str]:
    """Return the slugs that count as the reference GPU: its own, and those of several of it with published records."""
    one = reference_device()
    several = [device for device in _devices() if kind(device) == one and device != one]
    return [one, *sorted(several, key=lambda device: int(device.partition("x-")[0]))]


def is_reference(record: Record) -> bool:
    """Return whether a record is of the reference GPU, or of several of it."""
    return kind(record.device) == reference_device()


def is_quotable(record: Record) -> bool:
    """Return whether prose may speak of a record: of the reference GPU's, and of a processor's where it says so."""
    return record.device == CPU or is_reference(record)


def _devices() -> list[str]:
    return sorted(folder.name for folder in published_folder().glob("*/") if folder.is_dir())


def _files_of(device: str) -> list[Path]:
    return sorted((published_folder() / device).glob("*.json"))


# --- published, and one's own ----------------------------------------------------------------------------


def published(benchmark: str, device: str | None = None) -> Record:
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
    check_declared(benchmark)
    known = digest.benchmark_modules()
    if benchmark not in known:
        raise unknown("benchmark", benchmark, known)
    if device is None:
        wanted = reference_devices()
    else:
        wanted = [f"{device}-{reference_device()}" if re.fullmatch(r"\d+x", device) else device]
        check_spoken_of(wanted[0])
    for slug in wanted:
        path = published_folder() / slug / f"{benchmark}.json"
        if path.exists():
            return load(path)
    if device is None:
        check_reference()
    elif wanted[0] not in _devices():
        raise unknown("device with published records", wanted[0], _devices())
    raise GpuguideError(
        f"There is no published record of {benchmark!r} on {only_of(benchmark, wanted[0])}. Measure it with "
        f"'gpuguide bench run {benchmark} --out DIR' and 'gpuguide records import --publish DIR'."
    )


def only_of(benchmark: str, device: str) -> str:
    """Return a device without a published record of a benchmark, and which ones have one: ``a, only on b``."""
    held = [other for other in _devices() if (published_folder() / other / f"{benchmark}.json").exists()]
    return f"{device}, only on {', '.join(held)}" if held else device


def mine(benchmark: str) -> list[Record]:
    """Return the reader's own records of a benchmark, one for each device that they measured."""
    check_declared(benchmark)
    folder = overlay_folder()
    return [load(path) for path in sorted(folder.glob(f"*/{benchmark}.json"))] if folder else []


def is_mine(record: Record) -> bool:
    """Return whether a record lies in the reader's own folder."""
    folder = overlay_folder()
    return folder is not None and record.path is not None and record.path.is_relative_to(folder)


def check_declared(benchmark: str) -> None:
    """Raise if a page that is being built reads a benchmark which its front matter does not name."""
    declared = os.environ.get(DECLARED_VARIABLE)
    if declared is not None and benchmark not in declared.split(","):
        raise GpuguideError(describe_undeclared_record(benchmark))


def check_spoken_of(device: str) -> None:
    """Raise if a page that is being built asks for the record of another GPU than its own."""
    if DECLARED_VARIABLE in os.environ and kind(device) not in (reference_device(), CPU):
        raise GpuguideError(another_gpu(device))


def another_gpu(device: str) -> str:
    """Return what to say of a page that asks for the record of another GPU than its own."""
    return (
        f"This page speaks of {reference_device()}, and {device} is another GPU: a page never mixes two. Leave the "
        f"device out, or name that GPU in the page's front matter: gpuguide: {{gpu: {kind(device)}}}."
    )


def describe_undeclared_record(benchmark: str) -> str:
    """Return what to say of a page that reads a record and does not declare it."""
    return (
        f"This page reads the record {benchmark!r} and does not declare it. Add it to the page's front matter: "
        f"gpuguide: {{benchmarks: [{benchmark}]}}."
    )


def load(path: Path) -> Record:
    """Read a record, or return it again if the file has not changed since."""
    status = path.stat()
    return _load(path, status.st_mtime_ns, status.st_size)


@functools.lru_cache(maxsize=512)
def _load(path: Path, modified: int, size: int) -> Record:
    return records.read(path)


def record_files(benchmark: str) -> list[Path]:
    """Return the files that hold records of a benchmark, published ones first."""
    return [path for folder in folders() for path in sorted(folder.glob(f"*/{benchmark}.json"))]


def folders() -> list[Path]:
    """Return the folders that hold records: the published ones', and the reader's own if there is one."""
    overlay = overlay_folder()
    return [published_folder(), overlay] if overlay else [published_folder()]


def all_records(folder: Path) -> list[Record]:
    """Return every record in a folder, by device and benchmark."""
    return [load(path) for path in sorted(folder.glob("*/*.json"))]


def published_records() -> list[Record]:
    """Return every published record."""
    return all_records(published_folder())


def overlay_records() -> list[Record]:
    """Return every record of the reader's own."""
    folder = overlay_folder()
    return all_records(folder) if folder else []
