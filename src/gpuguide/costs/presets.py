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
from gpuguide.hardware.sources import SOURCE_KEYS, Source, read_source
from gpuguide.hardware.tables import only, parse_toml

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
    tables = parse_toml(text, origin)
    known = {
        key: read_source(key, _keys(entry, SOURCE_KEYS, SOURCE_KEYS, f"{origin}, sources.{key}"), origin)
        for key, entry in tables.get("sources", {}).items()
    }
    models = {key: _preset(key, entry, known, origin) for key, entry in tables.get("model", {}).items()}
    if not models:
        raise GpuguideError(f"{origin} has no [model.…] tables.")
    return MappingProxyType(known), MappingProxyType(models)


def _preset(key: str, entry: dict[str, Any], known: Mapping[str, Source], origin: str) -> Preset:
    where = f"{origin}, model.{key}"
    needed = (*_OWN, *_SHAPE[: _SHAPE.index("gated")])
    values = _keys(entry, (*_OWN, *_SHAPE), needed, where)
    if values["source"] not in known:
        raise GpuguideError(f"{where}: {unknown('source', str(values['source']), known)}")
    try:
        shape = Shape(**{name: value for name, value in values.items() if name in _SHAPE})
    except GpuguideError as error:
        raise GpuguideError(f"{where}: {error}") from error
    return Preset(key, shape=shape, **{name: values[name] for name in _OWN})


def _keys(entry: Any, allowed: tuple[str, ...], needed: tuple[str, ...], where: str) -> dict[str, Any]:
    if not isinstance(entry, dict):
        raise GpuguideError(f"{where} is {entry!r}; write a table.")
    only(entry, allowed, where)
    for key in needed:
        if key not in entry:
            raise GpuguideError(f"{where} has no {key}; add it.")
    return entry
