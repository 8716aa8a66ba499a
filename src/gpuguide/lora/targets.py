"""Which layers of a model a name means."""

from __future__ import annotations

import difflib
import fnmatch
from collections import Counter
from collections.abc import Iterable

from torch import nn

from gpuguide.errors import GpuguideError, UnknownName
from gpuguide.lora.layer import AdaptedLayer, can_be_adapted, frozen_parts

FEW = 12
"""Names that a message lists before it counts the rest"""


def matching(model: nn.Module, patterns: Iterable[str]) -> dict[str, str]:
    """Return the matrices of a model that patterns mean: each name with the first pattern that it matches.

    A pattern is a name or the end of one after a point; a star stands for any letters. Layers inside an adapter or an
    adapted layer are no matrices of the model.

    Parameters
    ----------
    model : torch.nn.Module
        With linear layers, ``Conv1D`` of ``transformers``, layers in few bits, or layers that have adapters already.
    patterns : iterable of str
        For example ``c_attn`` or ``blocks.0.*``.

    Raises
    ------
    UnknownName
        If a pattern matches none; the near names are listed.
    """
    patterns, candidates = tuple(patterns), layers_in(model)
    found: dict[str, str] = {}
    for pattern in patterns:
        matched = [name for name in candidates if _fits(name, pattern)]
        if not matched:
            raise _nothing(model, pattern, candidates)
        found |= {name: pattern for name in matched if name not in found}
    return {name: found[name] for name in candidates if name in found}  # in the order of the model


def layers_in(model: nn.Module) -> dict[str, nn.Module]:
    """Return the layers that adapters can stand beside, by name, in the order of the model."""
    found: dict[str, nn.Module] = {}
    for name, layer in model.named_modules():
        inside = any(name.startswith(f"{outer}.") for outer, other in found.items() if isinstance(other, AdaptedLayer))
        if name and not inside and can_be_adapted(layer):
            found[name] = layer
    return found


def check_not_tied(model: nn.Module, names: Iterable[str]) -> None:
    """Check that no layer shares its weight with another module, which an update would change too.

    Raises
    ------
    GpuguideError
        If one does.
    """
    owners = [(name, id(weight)) for name, weight in model.named_parameters(remove_duplicate=False)]
    shared = {weight for weight, count in Counter(weight for _, weight in owners).items() if count > 1}
    for name in names:
        layer = model.get_submodule(name)
        weight, _ = frozen_parts(layer.base if isinstance(layer, AdaptedLayer) else layer)
        if id(weight) in shared:
            others = [owner for owner, each in owners if each == id(weight) and not owner.startswith(f"{name}.")]
            raise GpuguideError(
                f"{name} shares its weight with {', '.join(others)}, which a merged adapter would change too; "
                "leave it out of the targets, or give it a weight of its own."
            )


def _fits(name: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(name, pattern) or fnmatch.fnmatchcase(name, f"*.{pattern}")


def _nothing(model: nn.Module, pattern: str, candidates: Iterable[str]) -> UnknownName:
    """Return the error for a pattern that matches nothing: near names, and those that there are."""
    kinds = list(dict.fromkeys(_kind(name) for name in candidates))
    modules = {name: layer for name, layer in model.named_modules() if name}
    other = next((layer for name, layer in modules.items() if _fits(name, pattern)), None)
    if other is not None:
        start = f"{pattern!r} matches a {type(other).__name__}; adapters stand beside linear layers and Conv1D."
    else:
        near = difflib.get_close_matches(pattern.rpartition(".")[2], kinds, n=3, cutoff=0.5)
        start = f"No layer matches {pattern!r}." + (f" Did you mean {' or '.join(near)}?" if near else "")
    more = f" and {len(kinds) - FEW} more" if len(kinds) > FEW else ""
    return UnknownName(f"{start} Layers of this model: {', '.join(kinds[:FEW]) or 'none'}{more}.")


def _kind(name: str) -> str:
    """Return a layer's name without what is before its number: ``attn.c_attn`` for ``transformer.h.3.attn.c_attn``."""
    parts = name.split(".")
    numbers = [place for place, part in enumerate(parts) if part.isdecimal()]
    return ".".join(parts[numbers[-1] + 1 :] if numbers and numbers[-1] + 1 < len(parts) else parts)
