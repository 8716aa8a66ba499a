"""Targets of adapters: layers of a model that a name matches, or rows of one layer.

A target is a layer's name or the end of one after a point, as PEFT takes it: ``c_attn`` is every layer whose name ends
so. ``*`` and ``?`` stand for any letters of a whole name. What comes after a colon names parts of a matrix that holds
several: ``c_attn:query,value`` stands beside the rows of queries and values alone.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from gpuguide.errors import GpuguideError, UnknownName, unknown
from gpuguide.lora.layer import AdaptedLayer, find_adapted_layers, is_adaptable, shape_of
from gpuguide.lora.product import Spans

FEW = 12
"""Names that a message lists before it counts the rest"""
SHORT = {"q": "query", "k": "key", "v": "value"}
"""Other names of parts"""


@dataclass(frozen=True)
class Target:
    """A layer that gets an adapter."""

    name: str
    parts: tuple[str, ...] = ()
    """Spans of rows of its matrix; all of it where there are none"""
    spans: Spans | None = None
    """Rows of the parts"""


def find_targets(model: nn.Module, targets: Sequence[str]) -> list[Target]:
    """Return the layers that targets mean, in the order of the model.

    Parameters
    ----------
    model : nn.Module
        With layers of ``nn.Linear``, the ``Conv1D`` of ``transformers``, or layers that have adapters.
    targets : sequence of str
        As this module describes them. Where several fit a layer, the first counts.

    Raises
    ------
    GpuguideError
        If there is none, one fits no layer (the near names are listed), or a matrix has no such parts.
    """
    if not targets:
        raise GpuguideError("No targets are given; name the layers that get adapters.")
    names = adaptable_layers(model)
    found: dict[str, Target] = {}
    for target in targets:
        pattern, _, given = target.partition(":")
        fitting = [name for name in names if _fits(name, pattern)]
        if not fitting:
            raise _nothing(model, pattern, names)
        for name in fitting:
            found.setdefault(name, _target(model, name, [part.strip() for part in given.split(",") if part.strip()]))
    return [found[name] for name in names if name in found]


def fitting_layers(model: nn.Module, targets: Sequence[str]) -> list[str]:
    """Return the names of the layers that targets mean. Parameters and errors as :func:`find_targets`."""
    return [target.name for target in find_targets(model, targets)]


def adaptable_layers(model: nn.Module) -> list[str]:
    """Return the names of the layers that can have adapters, in the order of the model.

    The layer inside an adapted one bears its name, and is none itself.
    """
    inside = {id(layer.base) for layer in find_adapted_layers(model).values()}
    return [
        name
        for name, layer in model.named_modules()
        if name and (isinstance(layer, AdaptedLayer) or (is_adaptable(layer) and id(layer) not in inside))
    ]


def check_not_tied(model: nn.Module, names: Iterable[str]) -> None:
    """Raise if a weight has two places: a change would reach one of them only, or, merged, the other one too.

    Raises
    ------
    GpuguideError
        If one has; the other places are named.
    """
    owners = [(name, id(weight)) for name, weight in model.named_parameters(remove_duplicate=False)]
    shared = {weight for weight, count in Counter(weight for _, weight in owners).items() if count > 1}
    for name in names:
        weight = id(getattr(model.get_submodule(name), "weight", None))
        if weight in shared:
            others = [owner for owner, each in owners if each == weight and owner != f"{name}.weight"]
            raise GpuguideError(
                f"The weight of {name} is tied to {', '.join(others)}. An adapter would change {name} only, and "
                "merging it would change both; leave the layer out, or untie it."
            )


# --- parts of a matrix -----------------------------------------------------------------------------------


def parts_of_layer(model: nn.Module, name: str) -> dict[str, tuple[int, int]]:
    """Return the parts of a matrix that holds several: first row, and the one after the last.

    Known are GPT-2's ``c_attn`` and the ``query_key_value`` and ``gate_up`` of :mod:`gpuguide.models`. Queries, keys
    and values have as many heads each, unless the module around says otherwise (``heads``, ``kv_heads``, ``head_dim``).
    """
    outputs, _ = shape_of(model.get_submodule(name))
    path, _, own = name.rpartition(".")
    if own in ("c_attn", "query_key_value"):
        around: Any = model.get_submodule(path)
        heads = getattr(around, "heads", 1)
        kv_heads = getattr(around, "kv_heads", heads)
        unit = outputs // (heads + 2 * kv_heads)
        return _below_each_other({"query": heads * unit, "key": kv_heads * unit, "value": kv_heads * unit})
    if own == "gate_up":
        return _below_each_other({"gate": outputs // 2, "up": outputs // 2})
    return {}


def _below_each_other(sizes: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    ends, start = {}, 0
    for name, size in sizes.items():
        ends[name] = (start, start + size)
        start += size
    return ends


def _target(model: nn.Module, name: str, given: Sequence[str]) -> Target:
    """Return a layer as a target, with its parts in the order of the rows."""
    if not given:
        return Target(name)
    known = parts_of_layer(model, name)
    if not known:
        raise GpuguideError(f"{name} is one matrix, as far as is known here; leave out what comes after the colon.")
    wanted = {SHORT.get(part, part) for part in given}
    for part in wanted:
        if part not in known:
            raise unknown(f"part of {name}", part, known)
    parts = tuple(part for part in known if part in wanted)
    return Target(name, parts, tuple(known[part] for part in parts))


# --- names -----------------------------------------------------------------------------------------------


def _fits(name: str, target: str) -> bool:
    if any(sign in target for sign in "*?["):
        return fnmatchcase(name, target)
    return name == target or name.endswith(f".{target}")


def _nothing(model: nn.Module, pattern: str, names: Sequence[str]) -> UnknownName:
    """Return the error for a pattern that fits nothing: near names, and those that there are."""
    kinds = list(dict.fromkeys(_kind(name) for name in names))
    other = next((layer for name, layer in model.named_modules() if name and _fits(name, pattern)), None)
    if other is not None:
        start = f"{pattern!r} fits a {type(other).__name__}; adapters stand beside nn.Linear and Conv1D."
    else:
        ends = {kind.rpartition(".")[2]: kind for kind in kinds}
        near = difflib.get_close_matches(pattern.rpartition(".")[2], ends, n=3, cutoff=0.4)
        start = f"No layer fits {pattern!r}." + (f" Did you mean {' or '.join(near)}?" if near else "")
    more = f" and {len(kinds) - FEW} more" if len(kinds) > FEW else ""
    return UnknownName(f"{start} Layers that can have adapters: {', '.join(kinds[:FEW]) or 'none'}{more}.")


def _kind(name: str) -> str:
    """Return a layer's name without what is before its number: ``attn.c_attn`` for ``transformer.h.3.attn.c_attn``."""
    parts = name.split(".")
    numbers = [place for place, part in enumerate(parts) if part.isdecimal()]
    return ".".join(parts[numbers[-1] + 1 :] if numbers and numbers[-1] + 1 < len(parts) else parts)
