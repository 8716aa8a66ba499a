"""Frozen matrices in few bits beside adapters: any that tell how they are turned back, in a form that compiles.

A compiler sees tensors and numbers. So a packed matrix is taken apart into its tensors, and what else it is, its type
and its sizes, is remembered under a number. Turning it back is an operator of PyTorch, into which no compiler looks.
There are two of them with one content: were it one, a compiler would notice that forward and backward pass ask for the
same, and keep the whole matrix in between.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Protocol, Self

import torch
from torch import nn

from gpuguide.errors import GpuguideError

Parts = tuple[torch.Tensor, ...]
"""The tensors of a packed matrix, in the order of its fields"""


class Packed(Protocol):
    """A frozen matrix in few bits: a dataclass, such as :class:`gpuguide.lora.nf4.Nf4` and those of inference."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def in_features(self) -> int:
        """Columns of the matrix."""

    @property
    def out_features(self) -> int:
        """Rows of the matrix."""

    def dequantize(self, dtype: torch.dtype) -> torch.Tensor:
        """Return the values that are stored, ``(out, in)``."""


Packing = Callable[[torch.Tensor], Packed]
"""From a matrix ``(out, in)`` to the same in few bits, for example :func:`gpuguide.lora.nf4.quantize_nf4`"""


class PackedMatrix(nn.Module):
    """A packed matrix as a part of a model: it moves from device to device with it, and is never cast.

    Its tensors are buffers that are not in the state of the model, since they can be made anew from the base.

    Parameters
    ----------
    packed : Packed
        A dataclass; its tensors are taken over.

    Raises
    ------
    GpuguideError
        If it is no dataclass, or one without tensors.
    """

    def __init__(self, packed: Packed) -> None:
        super().__init__()
        self.names = _tensor_fields(packed)
        self.in_features, self.out_features = packed.in_features, packed.out_features
        for name in self.names:
            self.register_buffer(name, getattr(packed, name), persistent=False)
        self.kind = kind_of(packed)

    @property
    def parts(self) -> Parts:
        """Its tensors."""
        return tuple(getattr(self, name) for name in self.names)

    @property
    def nbytes(self) -> int:
        """Bytes of its tensors."""
        return sum(part.nbytes for part in self.parts)

    def dequantize(self, dtype: torch.dtype) -> torch.Tensor:
        """Return the values that are stored, ``(out, in)``."""
        return unpack(list(self.parts), self.kind, dtype)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Self:
        """Move the tensors to where ``fn`` moves others, in their own formats: a scale in bf16 would be another one."""
        for name in self.names:
            part = getattr(self, name)
            setattr(self, name, part.to(fn(part.new_empty(0)).device))
        return self


def parts_of(packed: Packed | PackedMatrix) -> Parts:
    """Return the tensors of a packed matrix."""
    if isinstance(packed, PackedMatrix):
        return packed.parts
    return tuple(getattr(packed, name) for name in _tensor_fields(packed))


# --- the operator ----------------------------------------------------------------------------------------

_kinds: list[tuple[type, tuple[tuple[str, Any], ...], tuple[str, ...], tuple[int, int]]] = []
"""Type, settings, names of tensors and shape of each kind of packed matrix that was met"""


def kind_of(packed: Packed | PackedMatrix) -> int:
    """Return the number under which all of a packed matrix but its tensors is remembered."""
    if isinstance(packed, PackedMatrix):
        return packed.kind
    names = _tensor_fields(packed)
    others = tuple(
        (each.name, getattr(packed, each.name)) for each in dataclasses.fields(packed) if each.name not in names
    )
    kind = (type(packed), others, names, (packed.out_features, packed.in_features))
    if kind not in _kinds:
        _kinds.append(kind)
    return _kinds.index(kind)


def unpack(parts: Sequence[torch.Tensor], kind: int, dtype: torch.dtype, *, again: bool = False) -> torch.Tensor:
    """Return the values of a packed matrix, ``(out, in)``, from its tensors.

    Parameters
    ----------
    parts : sequence of torch.Tensor
        As :func:`parts_of` gives them.
    kind : int
        From :func:`kind_of`.
    dtype : torch.dtype
        Of the result.
    again : bool
        Whether it is for the backward pass.
    """
    return (_unpack_again if again else _unpack)(list(parts), kind, dtype)


def _turn_back(parts: list[torch.Tensor], kind: int, dtype: torch.dtype) -> torch.Tensor:
    made, others, names, _ = _kinds[kind]
    values: torch.Tensor = made(**dict(others), **dict(zip(names, parts, strict=True))).dequantize(dtype)
    return values


def _shape(parts: list[torch.Tensor], kind: int, dtype: torch.dtype) -> torch.Tensor:
    return parts[0].new_empty(_kinds[kind][3], dtype=dtype)


@torch.library.custom_op("gpuguide::unpacked", mutates_args=())
def _unpack(parts: list[torch.Tensor], kind: int, dtype: torch.dtype) -> torch.Tensor:
    """Turn a packed matrix back, for the forward pass."""
    return _turn_back(parts, kind, dtype)


@torch.library.custom_op("gpuguide::unpacked_again", mutates_args=())
def _unpack_again(parts: list[torch.Tensor], kind: int, dtype: torch.dtype) -> torch.Tensor:
    """Turn a packed matrix back, for the backward pass."""
    return _turn_back(parts, kind, dtype)


_unpack.register_fake(_shape)
_unpack_again.register_fake(_shape)


def _tensor_fields(packed: Packed) -> tuple[str, ...]:
    if not dataclasses.is_dataclass(packed):
        raise GpuguideError(f"A packed matrix is a dataclass that holds tensors; {type(packed).__name__} is none.")
    names = tuple(
        each.name for each in dataclasses.fields(packed) if isinstance(getattr(packed, each.name), torch.Tensor)
    )
    if not names:
        raise GpuguideError(f"{type(packed).__name__} holds no tensor, so it is no packed matrix.")
    return names
