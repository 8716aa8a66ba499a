"""A layer with adapters beside its frozen weights: ``nn.Linear``, the ``Conv1D`` of transformers, or a packed matrix.

``Conv1D`` stores its weight as (in, out), the other way round than ``nn.Linear``. Where a matrix is square, a wrong
transpose goes unnoticed; the adapter's own matrices have one orientation here, whatever the layer's is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import chain

import torch
from torch import nn

from gpuguide.errors import GpuguideError, unknown
from gpuguide.lora.packed import Packed, PackedMatrix
from gpuguide.lora.product import Frozen, Spans, product, whole_up


@dataclass(frozen=True)
class Settings:
    """Settings of an adapter.

    Parameters
    ----------
    rank : int
        Columns of the one thin matrix, and rows of the other.
    alpha : float
        The adapter's part is multiplied by ``alpha / rank``.
    dropout : float
        Share of the inputs of A that are set to zero in training.
    stabilised : bool
        Multiply by ``alpha / sqrt(rank)`` instead (D. Kalajdzievski, "A Rank Stabilization Scaling Factor for
        Fine-Tuning with LoRA", 2023).

    Raises
    ------
    GpuguideError
        If a number is out of its range.
    """

    rank: int = 16
    alpha: float = 32.0
    dropout: float = 0.0
    stabilised: bool = False

    def __post_init__(self) -> None:
        if type(self.rank) is not int or self.rank < 1:
            raise GpuguideError(f"The rank is {self.rank!r}; it must be a whole number of at least 1.")
        if not 0 < self.alpha < math.inf:
            raise GpuguideError(f"alpha is {self.alpha}; it must be a positive number.")
        if not 0 <= self.dropout < 1:
            raise GpuguideError(f"The dropout is {self.dropout}; it must be at least 0 and below 1.")

    @property
    def scale(self) -> float:
        """Factor of the adapter's output."""
        return self.alpha / (math.sqrt(self.rank) if self.stabilised else self.rank)


class Adapter(nn.Module):
    """Two thin matrices: A, drawn as PEFT draws it, and B, zeros, so that nothing changes before the first step.

    ``down`` is A, ``(rank, in)``; ``up`` is B, ``(out, rank)``. With ``spans``, which say beside which rows of the
    matrix there are adapters, A is ``(spans * rank, in)`` and B has the rows of all spans.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        settings: Settings,
        dtype: torch.dtype,
        device: torch.device,
        spans: Spans | None = None,
        parts: tuple[str, ...] = (),
    ) -> None:
        super().__init__()
        self.settings, self.outputs, self.spans, self.parts = settings, outputs, spans, parts
        places = 1 if spans is None else len(spans)
        rows = outputs if spans is None else sum(stop - start for start, stop in spans)
        self.down = nn.Parameter(torch.empty(places * settings.rank, inputs, dtype=dtype, device=device))
        self.up = nn.Parameter(torch.zeros(rows, settings.rank, dtype=dtype, device=device))
        self.dropout = nn.Dropout(settings.dropout)
        nn.init.kaiming_uniform_(self.down, a=math.sqrt(5))  # its bound depends on the inputs alone

    def whole_up(self) -> torch.Tensor:
        """Return B for the whole matrix, ``(out, spans * rank)``, with zeros where no adapter is."""
        return self.up if self.spans is None else whole_up(self.up, self.spans, self.outputs)

    def change(self) -> torch.Tensor:
        """Return what the adapter adds to the matrix, ``(out, in)`` in fp32, or in fp64 where it is stored in that."""
        wide = torch.float64 if self.up.dtype == torch.float64 else torch.float32
        return self.settings.scale * (self.whole_up().to(wide) @ self.down.to(wide))


class AdaptedLayer(nn.Module):
    """A frozen layer and its adapters, of which one is active at a time.

    Parameters
    ----------
    base : nn.Module
        An ``nn.Linear`` or a ``Conv1D`` of transformers. Its parameters no longer ask for gradients.
    packed : Packed, optional
        The same matrix in few bits; the layer's own weight is let go of then.

    Raises
    ------
    GpuguideError
        If the layer is of another kind, or the packed matrix of another size.
    """

    def __init__(self, base: nn.Module, packed: Packed | None = None) -> None:
        super().__init__()
        if not is_adaptable(base):
            raise GpuguideError(
                f"A layer of the type {type(base).__name__} cannot have an adapter; nn.Linear and Conv1D can."
            )
        self.transposed = not isinstance(base, nn.Linear)
        weight = base.weight
        assert isinstance(weight, torch.Tensor)
        self.out_features, self.in_features = shape_of(base)
        self.packed: PackedMatrix | None = None
        if packed is not None:
            if (packed.out_features, packed.in_features) != (self.out_features, self.in_features):
                raise GpuguideError(
                    f"The packed matrix is ({packed.out_features}, {packed.in_features}); "
                    f"the layer's is ({self.out_features}, {self.in_features})."
                )
            self.packed = PackedMatrix(packed)
            base.weight = None  # type: ignore[assignment]
        self.base = base.requires_grad_(False)
        self.adapters = nn.ModuleDict()
        self.active: str | None = None
        self.merged: str | None = None

    def add(
        self,
        name: str,
        settings: Settings,
        dtype: torch.dtype = torch.float32,
        *,
        spans: Spans | None = None,
        parts: tuple[str, ...] = (),
    ) -> Adapter:
        """Add an adapter and make it the active one.

        Parameters
        ----------
        name : str
            Without a point, since it becomes a part of the names of parameters.
        settings : Settings
            What it is.
        dtype : torch.dtype
            Format in which it is stored and trained.
        spans, parts
            Rows of the matrix beside which it stands, and what they are called; all rows if they are left out.

        Raises
        ------
        GpuguideError
            If there is one of that name, the rank is above the layer's size, or one is merged.
        """
        self.check_unmerged("add an adapter")
        self.check_addable(name, settings, spans)
        device = next(chain(self.base.parameters(), self.buffers())).device
        adapter = Adapter(self.in_features, self.out_features, settings, dtype, device, spans, parts)
        self.adapters[name] = adapter
        self.active = name
        return adapter

    def check_addable(self, name: str, settings: Settings, spans: Spans | None = None) -> None:
        """Raise what :meth:`add` would, but for what a merged adapter forbids."""
        if name in self.adapters:
            raise GpuguideError(f"There is an adapter named {name!r} already; choose another name.")
        check_rank((self.out_features, self.in_features), settings, spans)

    def use(self, name: str | None) -> None:
        """Make an adapter the active one; ``None`` gives the base alone.

        Raises
        ------
        GpuguideError
            If there is none of that name, or one is merged.
        """
        self.check_unmerged("change the adapter")
        if name is not None and name not in self.adapters:
            raise unknown("adapter", name, self.adapters)
        self.active = name

    def adapter(self, name: str) -> Adapter:
        """Return an adapter by name."""
        found = self.adapters[name]
        assert isinstance(found, Adapter)
        return found

    def get_frozen_matrix(self, dtype: torch.dtype) -> Frozen:
        """Return the frozen matrix, ``(out, in)`` in a format, or packed."""
        if self.packed is not None:
            return self.packed
        weight = self.base.weight
        assert isinstance(weight, torch.Tensor)
        return (weight.t() if self.transposed else weight).to(dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the layer's output with the active adapter, ``(..., in)`` to ``(..., out)``.

        It is computed in the format of ``x``, or in that of autocast where it is on; adapters in fp32 are cast, and
        their gradients are fp32 again.
        """
        if x.shape[-1] != self.in_features:
            raise GpuguideError(
                f"The layer takes inputs of the shape (..., {self.in_features}); given {tuple(x.shape)}."
            )
        kind = x.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
        x = x.to(dtype)
        held = self.base.bias
        bias = held.to(dtype) if isinstance(held, torch.Tensor) else None
        if self.active is None or self.merged is not None:
            weight = self.get_frozen_matrix(dtype)
            matrix = weight if isinstance(weight, torch.Tensor) else weight.dequantize(dtype)
            return nn.functional.linear(x, matrix, bias)
        adapter = self.adapter(self.active)
        dropping = self.training and adapter.settings.dropout > 0
        dropped = adapter.dropout(x) if dropping else None
        down, up = adapter.down.to(dtype), adapter.up.to(dtype)
        return product(x, self.get_frozen_matrix(dtype), bias, down, up, adapter.settings.scale, dropped, adapter.spans)

    @torch.no_grad()
    def merge(self, *, keep: bool = False) -> torch.Tensor | None:
        """Add the active adapter to the weights: the sum is taken in fp32 and rounded once.

        In bf16 a change below half of the distance between neighbouring numbers is lost.

        Parameters
        ----------
        keep : bool
            Whether the weights are returned as they were, for :meth:`unmerge`.

        Raises
        ------
        GpuguideError
            If an adapter is merged already, none is active, or the matrix is packed.
        """
        self.check_unmerged("merge")
        if self.active is None:
            raise GpuguideError("No adapter is active, so there is nothing to merge; choose one with use().")
        if self.packed is not None:
            raise GpuguideError("A packed matrix has no room for a change; merge into the weights it was made from.")
        weight = self._weight()
        kept = weight.clone() if keep else None
        change = self.adapter(self.active).change()
        weight.copy_(weight.to(change.dtype) + self.to_stored_layout(change))
        self.merged = self.active
        return kept

    @torch.no_grad()
    def unmerge(self, kept: torch.Tensor | None = None) -> None:
        """Take the merged adapter out of the weights.

        With a kept copy the weights are bit for bit what they were. Without, each is off by at most the roundings of
        two sums, one in either direction.

        Raises
        ------
        GpuguideError
            If no adapter is merged, or the copy has another shape or format.
        """
        if self.merged is None:
            raise GpuguideError("No adapter is merged, so there is nothing to take out.")
        weight = self._weight()
        if kept is None:
            change = self.adapter(self.merged).change()
            weight.copy_(weight.to(change.dtype) - self.to_stored_layout(change))
        elif kept.shape != weight.shape or kept.dtype != weight.dtype:
            raise GpuguideError(
                f"The copy is {kept.dtype} {tuple(kept.shape)}; the weights are {weight.dtype} {tuple(weight.shape)}."
            )
        else:
            weight.copy_(kept)
        self.merged = None

    def to_stored_layout(self, matrix: torch.Tensor) -> torch.Tensor:
        """Return a matrix ``(out, in)`` in the order in which the layer stores its own."""
        return matrix.t() if self.transposed else matrix

    def _weight(self) -> torch.Tensor:
        weight = self.base.weight
        assert isinstance(weight, torch.Tensor)
        return weight

    def check_unmerged(self, action: str) -> None:
        """Raise a :class:`~gpuguide.errors.GpuguideError` if an adapter is merged; ``action`` is what it forbids."""
        if self.merged is not None:
            raise GpuguideError(f"The adapter {self.merged!r} is merged; unmerge it before you {action}.")


def is_adaptable(layer: nn.Module) -> bool:
    """Return whether a layer is an ``nn.Linear`` or a ``Conv1D``, which is known by its name, without an import."""
    return isinstance(layer, nn.Linear) or type(layer).__name__ == "Conv1D"


def shape_of(layer: nn.Module) -> tuple[int, int]:
    """Return the shape of a layer's matrix, ``(out, in)``, however it is stored."""
    if isinstance(layer, AdaptedLayer):
        return layer.out_features, layer.in_features
    weight = layer.weight
    assert isinstance(weight, torch.Tensor)
    first, second = weight.shape
    return (first, second) if isinstance(layer, nn.Linear) else (second, first)


def check_rank(shape: tuple[int, int], settings: Settings, spans: Spans | None = None, name: str = "") -> None:
    """Raise a :class:`~gpuguide.errors.GpuguideError` if a rank is above what a matrix or a part of it can have."""
    most = min(shape) if spans is None else min(shape[1], *(stop - start for start, stop in spans))
    if settings.rank > most:
        what = name or f"a matrix of {shape[0]} by {shape[1]}"
        raise GpuguideError(
            f"The rank is {settings.rank}, but {what}{', or a part of it,' if spans else ''} has a rank of {most} at "
            "most; choose a lower one."
        )


def find_adapted_layers(model: nn.Module) -> dict[str, AdaptedLayer]:
    """Return the layers of a model that have adapters, by name."""
    return {name: layer for name, layer in model.named_modules() if isinstance(layer, AdaptedLayer)}
