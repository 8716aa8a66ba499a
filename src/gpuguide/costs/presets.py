"""The shapes of well-known open models, each with its source.

They stand in ``presets.toml`` beside this module.

>>> get("llama-3.1-8b").shape.parameters()
8030261248
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Any

from gpuguide.costs.memory import Shape
from gpuguide.errors import GpuguideError, unknown
from gpuguide.hardware.sources import Source, read_citation, read_tables
from gpuguide.hardware.tables import only

_OWN = ("name", "family", "config", "source", "parameters")
_SHAPE = tuple(field.name for field in fields(Shape))


@dataclass(frozen=True)
class Preset:
    """A model that has been published."""

    id: str
    name: str
    family: str
    config: str
    """Address of the publisher's configuration"""
    source: str
    """Key of the document, in :func:`sources`, in which the shape was read"""
    parameters: int
    """How many numbers the published weights hold"""
    shape: Shape


def load() -> Mapping[str, Preset]:
    """Return all models by id, in the table's order.

    Raises
    ------
    GpuguideError
        If the table is damaged: an unknown key, a missing value, a shape that makes no sense.
    """
    return _table()[1]


def sources() -> Mapping[str, Source]:
    """Return the documents that the shapes were read in, by key."""
    return _table()[0]


def get(name: str) -> Preset:
    """Return a model by its id, such as ``"llama-3.1-8b"``.

    Raises
    ------
    GpuguideError
        If there is none; the message lists the near ones.
    """
    if name not in load():
        raise unknown("model", name, load())
    return load()[name]


def shape(name: str) -> Shape:
    """Return the shape of a model by its id. Errors as :func:`get`."""
    return get(name).shape


@cache
def _table() -> tuple[Mapping[str, Source], Mapping[str, Preset]]:
    return parse(resources.files("gpuguide.costs").joinpath("presets.toml").read_text(encoding="utf-8"), "presets.toml")


def parse(text: str, origin: str) -> tuple[Mapping[str, Source], Mapping[str, Preset]]:
    """Return sources and models that the TOML ``text`` holds.

    Parameters
    ----------
    text : str
        Tables ``[sources.KEY]`` and ``[model."ID"]``.
    origin : str
        The name of the file, for messages.

    Raises
    ------
    GpuguideError
        At the first thing that is wrong; the message names the file, the table and the key.
    """
    known, tables = read_tables(text, origin, "model")
    return known, MappingProxyType({key: _preset(key, table, known, origin) for key, table in tables.items()})


def _preset(key: str, entry: Mapping[str, Any], known: Mapping[str, Source], origin: str) -> Preset:
    where = f"{origin}, model.{key}"
    needed = (*_OWN, *_SHAPE[: _SHAPE.index("gated")])
    only(entry, (*_OWN, *_SHAPE), where)
    for name in needed:
        if name not in entry:
            raise GpuguideError(f"{where} has no {name}; add it.")
    read_citation(entry, known, where)
    try:
        shape = Shape(**{name: value for name, value in entry.items() if name in _SHAPE})
    except GpuguideError as error:
        raise GpuguideError(f"{where}: {error}") from error
    return Preset(key, shape=shape, **{name: entry[name] for name in _OWN})
