"""The reference GPU, whose records prose speaks of: which one it is, its records, and its names in a sentence.

>>> from gpuguide.measure import reference_gpu
>>> f"one copy on {reference_gpu.word('a short')}"  # doctest: +SKIP
'one copy on an H200'
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from gpuguide.errors import GpuguideError, unknown
from gpuguide.hardware import datasheet
from gpuguide.hardware.datasheet import Gpu
from gpuguide.measure import digest, folders, page_gpu, records
from gpuguide.measure.records import Record

ID = "reference"
"""Id of the reference GPU where an id of the datasheet table is expected"""
_MAKER = re.compile(r"^(?:NVIDIA |Tesla |GeForce )+")
_BOARD = re.compile(r" (?:SXM\d?|PCIe)\b.*$")
_SPOKEN_WITH_AN = "AEFHILMNORSX"
"""Letters whose names begin with a vowel: an H100, a B200"""


def settings_file() -> Path:
    """Return the file that names the reference GPU."""
    return digest.PACKAGE_FOLDER / "records" / "reference.toml"


def slug() -> str:
    """Return the slug of the GPU whose records prose, figures and stamps speak of: the page's, or the default.

    Raises
    ------
    GpuguideError
        If the page or the setting does not name one GPU.
    """
    named = page_gpu.get_current_gpu()
    return page_gpu.check_gpu(named.device, named.place) if named.device else default_slug()


def default_slug() -> str:
    """Return the slug of the GPU that pages speak of which name none.

    Raises
    ------
    GpuguideError
        If the setting does not name one device.
    """
    return page_gpu.default_in(settings_file())


def slugs() -> list[str]:
    """Return the slugs that count as the reference GPU: its own, and those of several of it with published records."""
    one = slug()
    several = [device for device in folders.list_devices() if page_gpu.kind(device) == one and device != one]
    return [one, *sorted(several, key=page_gpu.count)]


def check_records() -> None:
    """Raise if the page or the setting names a GPU without published records, with those that have some."""
    if not any(folders.list_published_files(device) for device in slugs()):
        named = page_gpu.get_current_gpu()
        others = (
            ", ".join(sorted({page_gpu.kind(device) for device in folders.list_devices()} - {page_gpu.CPU})) or "no GPU"
        )
        raise GpuguideError(
            f"{named.place if named.device else settings_file()} names the device {slug()!r}, of which "
            f"there are no published records. There are records of {others}."
        )


def load_any_record() -> Record:
    """Return a record of the reference GPU, whichever comes first: all say the device's name.

    Raises
    ------
    GpuguideError
        If there is none.
    """
    check_records()
    return records.load(next(path for device in slugs() for path in folders.list_published_files(device)))


def is_reference(record: Record) -> bool:
    """Return whether a record is of the reference GPU, or of several of it."""
    return page_gpu.kind(record.device) == slug()


def is_quotable(record: Record) -> bool:
    """Return whether prose may speak of a record: of the reference GPU's, and of a processor's where it says so."""
    return record.device == page_gpu.CPU or is_reference(record)


def word(form: str) -> str:
    """Return what to call the reference GPU.

    Parameters
    ----------
    form : str
        ``"name"`` as its driver says, ``"short"`` as people say, ``"a short"`` and ``"A short"`` with the article,
        ``"architecture"`` or ``"board"``, for example Hopper and SXM5, from the table of GPUs.

    Raises
    ------
    GpuguideError
        If there is no such form, or the device has no records, or the table lacks it.
    """
    if form not in FORMS:
        raise unknown("form of the GPU's name", form, FORMS)
    return FORMS[form]()


def name() -> str:
    """Return the name that the driver reports, for example ``NVIDIA H200``."""
    return load_any_record().device_name


def short() -> str:
    """Return the name as people say it, for example ``H200``."""
    return short_name(name())


def short_name(device_name: str) -> str:
    """Return a GPU's name without its maker, its board and the size of its memory.

    >>> short_name("NVIDIA H100 80GB HBM3"), short_name("NVIDIA GeForce RTX 4090")
    ('H100', 'RTX 4090')
    """
    known = datasheet.find(device_name)
    return _BOARD.sub("", _MAKER.sub("", known.name if known else device_name))


def sheet(gpu_id: str = ID) -> Gpu:
    """Return what the vendor says of the GPU with this id; ``"reference"`` is the reference GPU.

    Raises
    ------
    GpuguideError
        If the table of GPUs has none of that id, or lacks the reference GPU.
    """
    if gpu_id != ID:
        return datasheet.get(gpu_id)
    device = slug()
    found = datasheet.find(device)  # which compares names as slugs are made of them
    if found is None:
        raise GpuguideError(f"The reference GPU, {device}, is not in the table of GPUs. Add it to datasheet.toml.")
    return found


def age(record: Record, spoken_of: bool | None = None) -> str:
    """Return what is said of a record whose code has changed since; empty if the record is fresh.

    Parameters
    ----------
    record : Record
        A published record, or a reader's own.
    spoken_of : bool, optional
        Whether text speaks of it, so that its age is a fault; of others the date is said. By default, whether the page
        at hand may quote it.
    """
    if not record.stale:
        return ""
    if is_quotable(record) if spoken_of is None else spoken_of:
        return "stale: the code that measured this has changed since"
    return f"measured with the code of {code_of(record)}"


def code_of(record: Record) -> str:
    """Return the day of the code that measured a record, which is the day of its last run."""
    return max(run.finished_at for run in record.runs)[:10]


def _with_article(article: str) -> str:
    return f"{article}{'n' * (short()[0] in _SPOKEN_WITH_AN)} {short()}"


FORMS: dict[str, Callable[[], str]] = {
    "name": name,
    "short": short,
    "a short": lambda: _with_article("a"),
    "A short": lambda: _with_article("A"),
    "architecture": lambda: sheet().architecture,
    "board": lambda: sheet().form,
}
"""The forms that :func:`word` knows"""
