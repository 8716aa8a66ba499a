"""Folders of records: the published ones in the package, and the reader's own in an overlay folder."""

from __future__ import annotations

import os
from pathlib import Path

from gpuguide.errors import GpuguideError
from gpuguide.measure import digest

OVERLAY_VARIABLE = "GPUGUIDE_RECORDS"
"""The environment variable that names the overlay folder"""


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


def cache_folder() -> Path:
    """Return the folder of files that can be made again, which need not exist yet."""
    import platformdirs

    return Path(platformdirs.user_cache_dir("gpuguide", appauthor=False))


def record_folders() -> list[Path]:
    """Return the folders that hold records: the published ones', and the reader's own if there is one."""
    overlay = overlay_folder()
    return [published_folder(), overlay] if overlay else [published_folder()]


def record_files(benchmark: str) -> list[Path]:
    """Return the files that hold records of a benchmark, published ones first."""
    return [path for folder in record_folders() for path in sorted(folder.glob(f"*/{benchmark}.json"))]


def list_devices() -> list[str]:
    """Return the slugs of the devices that have a folder of published records."""
    return sorted(folder.name for folder in published_folder().glob("*/") if folder.is_dir())


def list_published_files(device: str) -> list[Path]:
    """Return the files of a device's published records."""
    return sorted((published_folder() / device).glob("*.json"))
