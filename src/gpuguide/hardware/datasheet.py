"""The datasheet table: what the vendor says of each GPU, every figure with its source.

The figures stand in ``datasheet.toml`` beside this module, with the rules for reading them. They are what a
vendor printed, never what a benchmark measured: pages show them beside measured ceilings, not in their place.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Any

from gpuguide.errors import GpuguideError, unknown
from gpuguide.hardware.sources import PrintedValue, Source, read_tables, read_value
from gpuguide.hardware.tables import only, text_of, texts

# The unit of a figure follows from its key: this is the only place that says which.
UNITS: Mapping[str, str] = MappingProxyType(
    {
        "memory": "B",
        "driver_memory": "B",
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

_GPU_KEYS = ("name", "aliases", "architecture", "capability", "form", "supports")


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
    figures: Mapping[str, PrintedValue]
    supports: frozenset[str]

    @property
    def capacity(self) -> float:
        """Bytes of memory that a driver reports, or that are printed where we know of no driver's report."""
        return self.figures.get("driver_memory", self.figures["memory"]).value


@dataclass(frozen=True)
class Datasheet:
    """The whole table, checked."""

    sources: Mapping[str, Source]
    gpus: Mapping[str, Gpu]
    names: Mapping[str, Gpu]
    """Every name and alias, as :func:`normalise_device_name`, with its GPU."""


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
    return _table().names.get(normalise_device_name(device_name))


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


def normalise_device_name(device_name: str) -> str:
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
    known, tables = read_tables(text, origin, "gpu")
    gpus = {key: _gpu(key, table, known, origin) for key, table in tables.items()}
    names: dict[str, Gpu] = {}
    for gpu in gpus.values():
        for name in (gpu.name, *gpu.aliases):
            other = names.setdefault(normalise_device_name(name), gpu)
            if other is not gpu:
                raise GpuguideError(f"{origin}: the name {name!r} belongs to both {other.id} and {gpu.id}.")
    return Datasheet(known, MappingProxyType(gpus), MappingProxyType(names))


def _gpu(key: str, table: Mapping[str, Any], known: Mapping[str, Source], origin: str) -> Gpu:
    where = f"{origin}, gpu.{key}"
    only(table, (*_GPU_KEYS, *UNITS), where)
    name, architecture, form = (text_of(table, name, where) for name in ("name", "architecture", "form"))
    aliases, supports = (texts(table, name, where) for name in ("aliases", "supports"))
    strange = sorted(set(supports) - FEATURES)
    if strange:
        raise GpuguideError(f"{where}: supports names {strange[0]!r}; known: {', '.join(sorted(FEATURES))}.")
    capability = table.get("capability")
    if not isinstance(capability, list) or [type(part) for part in capability] != [int, int]:
        raise GpuguideError(f"{where}: capability is {capability!r}; write two whole numbers such as [9, 0].")
    figures = {name: read_value(table[name], name, UNITS[name], known, where) for name in UNITS if name in table}
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
