"""An adapter of ours as the ones that PEFT stores, and back.

PEFT finds layers by the names that ``transformers`` gives them, and knows nothing of parts of a matrix. So an adapter
that stands beside parts is stored as the one of a higher rank that does the same, with zeros in B. Where a matrix of
ours is several there, *places* say which, and an adapter of the whole matrix is stored once for each, with the same A.
What each was is noted, so that it comes back bit for bit.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from gpuguide.errors import GpuguideError
from gpuguide.lora.layer import Adapter, Settings, shape_of
from gpuguide.lora.product import Spans, whole_up
from gpuguide.lora.targets import Target, parts_of_layer


@dataclass(frozen=True)
class TransformersMatrix:
    """Name of one of our matrices in ``transformers``, or of some of its rows."""

    name: str
    rows: tuple[int, int] | None = None
    """First row, and the one after the last; all where there are none"""
    transposed: bool = False
    """Whether it is a ``Conv1D`` there"""


Places = Mapping[str, Sequence[TransformersMatrix]]
"""By the name of our layer"""


@dataclass(frozen=True)
class StoredAdapter:
    """Content of a file for one layer: A, ``(rank, in)``, B, ``(out, rank)``, and the settings."""

    down: torch.Tensor
    up: torch.Tensor
    settings: Settings
    parts: tuple[str, ...] = ()
    """Parts of the matrix that it stands beside, where they were noted"""
    part_alpha: float | None = None
    """Alpha of the adapter beside these parts, where it was noted"""
    shares_down: bool = False
    """Whether it was noted that the adapters of the matrix's other places are the same one of ours"""


def adapter_at(place: TransformersMatrix, adapter: Adapter) -> StoredAdapter | None:
    """Return what an adapter does at a place, or ``None`` if nothing."""
    start, stop = place.rows or (0, adapter.outputs)
    if adapter.spans is None:
        shares_down = place.rows is not None
        return StoredAdapter(adapter.down, adapter.up[start:stop], adapter.settings, shares_down=shares_down)
    if (start, stop) in adapter.spans:
        number, rank = adapter.spans.index((start, stop)), adapter.settings.rank
        up = adapter.up.split([end - begin for begin, end in adapter.spans])[number]
        return StoredAdapter(adapter.down[number * rank : (number + 1) * rank], up, adapter.settings)
    if not any(begin < stop and start < end for begin, end in adapter.spans):
        return None
    settings = _with_rank(adapter.settings, len(adapter.spans) * adapter.settings.rank)
    up = adapter.whole_up()[start:stop]
    return StoredAdapter(adapter.down, up, settings, adapter.parts, adapter.settings.alpha)


def _with_rank(settings: Settings, rank: int) -> Settings:
    """Return settings of another rank that scale as before."""
    alpha = settings.scale * (math.sqrt(rank) if settings.stabilised else rank)
    return Settings(rank, alpha, settings.dropout, settings.stabilised)


def join_adapters(
    model: nn.Module, layer: str, here: Mapping[TransformersMatrix, StoredAdapter], folder: Path
) -> tuple[Target, StoredAdapter]:
    """Return what several places of one matrix hold as one adapter of ours."""
    first = next(iter(here.values()))
    if [place.rows for place in here] == [None]:
        return _apart(model, layer, first) if first.parts else (Target(layer), first)
    spans = tuple(place.rows for place in here if place.rows is not None)
    if any(each.settings != first.settings for each in here.values()):
        raise GpuguideError(f"The adapters in {folder} for parts of {layer} differ in rank or scale.")
    up = torch.cat([each.up for each in here.values()])
    if _is_one(here.values()) and _covers(spans, shape_of(model.get_submodule(layer))[0]):
        return Target(layer), StoredAdapter(first.down, up, first.settings)
    names = {rows: part for part, rows in parts_of_layer(model, layer).items()}
    parts = tuple(names.get(rows, f"{rows[0]} to {rows[1]}") for rows in spans)
    down = torch.cat([each.down for each in here.values()])
    return Target(layer, parts, spans), StoredAdapter(down, up, first.settings, parts)


def _is_one(adapters: Collection[StoredAdapter]) -> bool:
    """Return whether adapters were stored from one of ours, and nobody has trained their As apart since."""
    first = next(iter(adapters))
    return all(each.shares_down and _same_bits(each.down, first.down) for each in adapters)


def _covers(spans: Spans, outputs: int) -> bool:
    """Return whether spans are all rows of a matrix, in order."""
    return list(itertools.chain(*spans)) == sorted([0, *2 * [stop for _, stop in spans[:-1]], outputs])


def _apart(model: nn.Module, layer: str, stored: StoredAdapter) -> tuple[Target, StoredAdapter]:
    """Return an adapter beside parts of a matrix, which was stored as one of a higher rank."""
    known = parts_of_layer(model, layer) if layer in dict(model.named_modules()) else {}
    if not set(stored.parts) <= known.keys() or stored.settings.rank % len(stored.parts):
        return Target(layer), stored
    spans: Spans = tuple(known[part] for part in stored.parts)
    rank = stored.settings.rank // len(spans)
    columns = stored.up.split(rank, dim=1)
    up = torch.cat([part[start:stop] for part, (start, stop) in zip(columns, spans, strict=True)])
    if not _same_bits(whole_up(up, spans, len(stored.up)), stored.up):  # trained on in PEFT: no zeros any more
        return Target(layer), stored
    settings = _with_rank(stored.settings, rank)
    if stored.part_alpha is not None:
        noted = replace(settings, alpha=stored.part_alpha)
        if _with_rank(noted, stored.settings.rank).alpha == stored.settings.alpha:  # nobody has changed it since
            settings = noted
    return Target(layer, stored.parts, spans), StoredAdapter(stored.down, up, settings, stored.parts)


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two matrices are equal bit for bit; unlike ``torch.equal``, also where they are not a number."""
    one_bits, other_bits = (each.detach().contiguous().view(torch.uint8) for each in (one, other))
    return one.dtype == other.dtype and torch.equal(one_bits, other_bits)
