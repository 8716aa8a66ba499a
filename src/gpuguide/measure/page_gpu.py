"""The GPU that the text at hand speaks of, where that is not the default of ``records/reference.toml``.

A page may name a GPU in its front matter, ``gpuguide: {gpu: nvidia-h100-80gb-hbm3}``. While the site reads or writes
that page, or evaluates a row of the ledger on one of its topics, :func:`use_current_gpu` holds. The kernel that runs
the page, and its notebook, have the name in the environment variable :data:`VARIABLE`.
:func:`gpuguide.measure.reference_gpu.slug` asks here.
"""

from __future__ import annotations

import functools
import os
import re
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

from gpuguide.errors import GpuguideError

VARIABLE = "GPUGUIDE_GPU"
"""Environment variable of a page's kernel and notebook: the GPU that the page names; unset or empty for the default"""
CPU = "cpu"
"""The slug of every processor"""
HOW = "Name one device by its folder of records, without a number of devices, for example nvidia-h200."
_SETTING = 'Write one line: device = "nvidia-h200".'
_COUNT = re.compile(r"^\d+x-")
_SLUG = re.compile(r"[a-z0-9-]+")


@dataclass(frozen=True)
class CurrentGpu:
    """A GPU, and what named it."""

    device: str
    """Its slug; empty for the default"""
    place: str
    """The page, with its line where it is known, or the environment variable"""


_NOW: ContextVar[CurrentGpu | None] = ContextVar("gpu of the page", default=None)


def get_current_gpu() -> CurrentGpu:
    """Return what the text at hand speaks of; its device is empty where that is the default."""
    return _NOW.get() or CurrentGpu(os.environ.get(VARIABLE, ""), f"The environment variable {VARIABLE}")


def set_current_gpu(device: str, place: str) -> None:
    """Speak of this GPU from now on, or of the default if ``device`` is empty."""
    _NOW.set(CurrentGpu(device, place))


@contextmanager
def use_current_gpu(device: str, place: str) -> Iterator[None]:
    """Speak of this GPU in the ``with`` block, or of the default if ``device`` is empty."""
    token = _NOW.set(CurrentGpu(device, place))
    try:
        yield
    finally:
        _NOW.reset(token)


def kind(device: str) -> str:
    """Return the slug of one device of several: ``nvidia-h200`` for ``8x-nvidia-h200``."""
    return _COUNT.sub("", device)


def count(device: str) -> int:
    """Return the number of devices that a slug names: 8 for ``8x-nvidia-h200``."""
    found = _COUNT.match(device)
    return int(found[0][:-2]) if found else 1


def check_gpu(device: object, place: str) -> str:
    """Return the slug of one GPU.

    Raises
    ------
    GpuguideError
        If it is anything else: a list, several of a GPU, or a processor. The message begins with ``place``.
    """
    if not isinstance(device, str) or device != kind(device) or not _SLUG.fullmatch(device):
        raise GpuguideError(f"{place} names {device!r}. {HOW}")
    if device == CPU:
        raise GpuguideError(f"{place} names a processor. The GPU of the prose is a GPU. {HOW}")
    return device


def default_in(path: Path) -> str:
    """Return the GPU that ``reference.toml`` names, for pages that name none.

    Raises
    ------
    GpuguideError
        If the file does not name one device, or holds anything else.
    """
    try:
        status = path.stat()
    except OSError as error:
        raise GpuguideError(f"{path} cannot be read: {error.strerror}. {_SETTING}") from error
    return _default_in(path, status.st_mtime_ns, status.st_size)


@functools.lru_cache(maxsize=2)
def _default_in(path: Path, modified: int, size: int) -> str:
    try:
        setting = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise GpuguideError(f"{path} is not TOML ({error}). {_SETTING}") from error
    if "device" not in setting:
        raise GpuguideError(f"{path} names no reference GPU. {_SETTING}")
    if further := sorted(setting.keys() - {"device"}):
        raise GpuguideError(
            f"{path} sets {', '.join(further)}, which nothing reads. {_SETTING} Nothing else belongs here."
        )
    return check_gpu(setting["device"], str(path))
