"""The datasheet table: what the vendor says of each GPU, every figure with its source.

The figures stand in ``datasheet.toml`` beside this module, with the rules for reading them. They are what a
vendor printed, never what a benchmark measured: pages show them beside measured ceilings, not in their place.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Any

from gpuguide.errors import GpuguideError, unknown

NOT_VERIFIED = "not verified"

# The unit of a figure follows from its key: this is the only place that says which.
UNITS: Mapping[str, str] = MappingProxyType(
    {
        "memory": "B",
        "memory_bandwidth": "B/s",
        "l2": "B",
        "sms": "1",
        "boost_clock": "Hz",
        "tdp": "W",
        "fp32": "FLOP/s",
        "tf32_dense": "FLOP/s",
        "tf32_sparse": "FLOP/s",
        "fp16_dense": "FLOP/s",
        "fp16_sparse": "FLOP/s",
        "bf16_dense": "FLOP/s",
        "bf16_sparse": "FLOP/s",
        "fp8_dense": "FLOP/s",
        "fp8_sparse": "FLOP/s",
        "pcie_per_direction": "B/s",
        "pcie_total": "B/s",
        "nvlink_per_direction": "B/s",
        "nvlink_total": "B/s",
    }
)
FEATURES = frozenset({"fp16", "bf16", "tf32", "fp8", "flash-attention", "nvlink"})

SOURCE_KEYS = ("title", "url", "publisher", "looked_at")
_GPU_KEYS = ("name", "aliases", "architecture", "capability", "form", "supports")
_FIGURE_KEYS = ("value", "source", "note")


@dataclass(frozen=True)
class Source:
    """A document that figures come from."""

    key: str
    title: str
    url: str
    publisher: str
    looked_at: str
    """The day (ISO 8601) on which it was read for the figures that cite it, or ``"not verified"``."""

    @property
    def verified(self) -> bool:
        """Whether the document itself was looked at."""
        return self.looked_at != NOT_VERIFIED

    @property
    def seen(self) -> str:
        """Whether the document was looked at, and when, as pages say it."""
        return f"looked at on {self.looked_at}" if self.verified else "not verified by us"


@dataclass(frozen=True)
class Figure:
    """One value of a GPU, in SI units, with the key of its source in :func:`sources`."""

    value: float
    unit: str
    source: str
    note: str = ""

    @property
    def derived(self) -> bool:
        """Whether the value stands in no document but follows from printed ones as the note says."""
        return "derived" in self.note


@dataclass(frozen=True)
class Gpu:
    """A GPU as its vendor describes it.

    ``figures`` maps keys of :data:`UNITS` to values; a key is absent where the GPU lacks the thing, or where
    nothing is printed. ``supports`` is a subset of :data:`FEATURES`.
    """

    id: str
    name: str
    aliases: tuple[str, ...]
    architecture: str
    capability: tuple[int, int]
    form: str
    figures: Mapping[str, Figure]
    supports: frozenset[str]


@dataclass(frozen=True)
class Datasheet:
    """The whole table, checked."""

    sources: Mapping[str, Source]
    gpus: Mapping[str, Gpu]
    names: Mapping[str, Gpu]
    """Every name and alias, as :func:`normalised`, with its GPU."""


def load() -> Mapping[str, Gpu]:
    """Return all GPUs of the table by id, in the table's order (oldest architecture first).

    Raises
    ------
    GpuguideError
        If the table is damaged: an unknown key, a figure without a source, a source that does not exist.
    """
    return _table().gpus


def sources() -> Mapping[str, Source]:
    """Return the documents that the figures come from, by key."""
    return _table().sources


def find(device_name: str) -> Gpu | None:
    """Return the GPU that reports itself as ``device_name``, or None if the table does not have it.

    Case, hyphens, and the words NVIDIA, Tesla and GeForce in front make no difference; everything else does,
    because a suffix stands for another product: a laptop GPU or a slice of a GPU (MIG) has other figures than
    the whole card.

    Parameters
    ----------
    device_name : str
        As ``torch.cuda.get_device_name`` or NVML gives it, for example ``"NVIDIA H100 80GB HBM3"``.
    """
    return _table().names.get(normalised(device_name))


def get(id_or_name: str) -> Gpu:
    """Return a GPU by its id (``"h100-sxm"``), its name or a name that drivers report.

    Raises
    ------
    GpuguideError
        If there is none; the message lists the near ones.
    """
    gpus = load()
    gpu = gpus.get(id_or_name) or gpus.get(id_or_name.lower()) or find(id_or_name)
    if gpu is None:
        raise unknown("GPU", id_or_name, gpus)
    return gpu


def normalised(device_name: str) -> str:
    """Return a device name as names are compared: ``"Tesla V100-SXM2-16GB"`` gives ``"v100 sxm2 16gb"``."""
    words = re.split(r"[\s_\-]+", device_name.strip().strip("\0").lower())
    while words and words[0] in {"nvidia", "tesla", "geforce"}:
        del words[0]
    return " ".join(words)


@cache
def _table() -> Datasheet:
    file = resources.files("gpuguide.hardware").joinpath("datasheet.toml")
    return parse(file.read_text(encoding="utf-8"), "datasheet.toml")


def parse(text: str, origin: str) -> Datasheet:
    """Return the table that the TOML ``text`` holds.

    Parameters
    ----------
    text : str
        Tables ``[sources.KEY]`` and ``[gpu.ID]``.
    origin : str
        The name of the file, for messages.

    Raises
    ------
    GpuguideError
        At the first thing that is wrong; the message names the file, the table and the key.
    """
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise GpuguideError(f"{origin} is not valid TOML: {error}.") from error
    _only(tables, ("sources", "gpu"), origin)
    known = {key: read_source(key, table, origin) for key, table in _tables(tables, "sources", origin)}
    gpus = {key: _gpu(key, table, known, origin) for key, table in _tables(tables, "gpu", origin)}
    names: dict[str, Gpu] = {}
    for gpu in gpus.values():
        for name in (gpu.name, *gpu.aliases):
            other = names.setdefault(normalised(name), gpu)
            if other is not gpu:
                raise GpuguideError(f"{origin}: the name {name!r} belongs to both {other.id} and {gpu.id}.")
    return Datasheet(MappingProxyType(known), MappingProxyType(gpus), MappingProxyType(names))


def read_source(key: str, table: Mapping[str, Any], origin: str) -> Source:
    """Return the document that a table ``[sources.KEY]`` describes, here or in another table of published figures.

    Parameters
    ----------
    key : str
        The name by which figures cite the document.
    table : Mapping
        Its title, url, publisher and looked_at.
    origin : str
        The name of the file, for messages.

    Raises
    ------
    GpuguideError
        If a key is unknown, a text is missing or empty, or ``looked_at`` is neither a date nor ``"not verified"``.
    """
    where = f"{origin}, sources.{key}"
    _only(table, SOURCE_KEYS, where)
    title, url, publisher, looked_at = (_text(table, name, where) for name in SOURCE_KEYS)
    if looked_at != NOT_VERIFIED:
        try:
            date.fromisoformat(looked_at)
        except ValueError:
            raise GpuguideError(
                f"{where}: looked_at is {looked_at!r}; write a date such as 2026-11-21, or {NOT_VERIFIED!r}."
            ) from None
    return Source(key, title, url, publisher, looked_at)


def _gpu(key: str, table: Mapping[str, Any], known: Mapping[str, Source], origin: str) -> Gpu:
    where = f"{origin}, gpu.{key}"
    _only(table, (*_GPU_KEYS, *UNITS), where)
    name, architecture, form = (_text(table, name, where) for name in ("name", "architecture", "form"))
    aliases, supports = (_texts(table, name, where) for name in ("aliases", "supports"))
    strange = sorted(set(supports) - FEATURES)
    if strange:
        raise GpuguideError(f"{where}: supports names {strange[0]!r}; known: {', '.join(sorted(FEATURES))}.")
    capability = table.get("capability")
    if not isinstance(capability, list) or [type(part) for part in capability] != [int, int]:
        raise GpuguideError(f"{where}: capability is {capability!r}; write two whole numbers such as [9, 0].")
    figures = {figure: _figure(table[figure], figure, known, where) for figure in UNITS if figure in table}
    if "memory" not in figures:
        raise GpuguideError(f"{where} has no memory; every GPU needs that figure.")
    return Gpu(
        id=key,
        name=name,
        aliases=aliases,
        architecture=architecture,
        capability=(capability[0], capability[1]),
        form=form,
        figures=MappingProxyType(figures),
        supports=frozenset(supports),
    )


def _figure(entry: Any, key: str, known: Mapping[str, Source], where: str) -> Figure:
    where = f"{where}, {key}"
    if not isinstance(entry, dict):
        raise GpuguideError(f'{where} is {entry!r}; write {{ value = …, source = "…" }}.')
    _only(entry, _FIGURE_KEYS, where)
    value = entry.get("value")
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise GpuguideError(f"{where}: value is {value!r}; write a number above zero, in {UNITS[key]}.")
    if "source" not in entry:
        raise GpuguideError(f"{where} has no source; name one of [sources].")
    source = _text(entry, "source", where)
    if source not in known:
        raise GpuguideError(f"{where}: {unknown('source', source, known)}")
    note = _text(entry, "note", where) if "note" in entry else ""
    return Figure(float(value), UNITS[key], source, note)


def _tables(tables: Mapping[str, Any], name: str, origin: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    group = tables.get(name)
    if not isinstance(group, dict) or not group:
        raise GpuguideError(f"{origin} has no [{name}.…] tables.")
    for key, table in group.items():
        if not isinstance(table, dict):
            raise GpuguideError(f"{origin}: {name}.{key} is {table!r}; write a table [{name}.{key}].")
        yield key, table


def _only(table: Mapping[str, Any], allowed: tuple[str, ...], where: str) -> None:
    for key in table:
        if key not in allowed:
            raise GpuguideError(f"{where}: {unknown('key', key, allowed)}")


def _text(table: Mapping[str, Any], key: str, where: str) -> str:
    value = table.get(key)
    if not isinstance(value, str) or not value.strip():
        raise GpuguideError(f"{where}: {key} is {value!r}; write a text that is not empty.")
    return value


def _texts(table: Mapping[str, Any], key: str, where: str) -> tuple[str, ...]:
    values = table.get(key)
    if not isinstance(values, list) or not values or not all(isinstance(text, str) for text in values):
        raise GpuguideError(f"{where}: {key} is {values!r}; write a list of texts.")
    return tuple(values)
