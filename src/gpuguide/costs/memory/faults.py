"""What makes no sense: a sentence for each field, the first of which is raised."""

from __future__ import annotations

from collections.abc import Mapping

from gpuguide.errors import GpuguideError

LARGEST = {"count": 10**6, "size": 10**9}
"""Bounds of what is accepted, far above any model: of layers, heads, GPUs and sequences, and of all else"""


def check_whole(faults: dict[str, str], name: str, value: int, largest: int) -> None:
    """Add a sentence for a field that is no whole number from 1 to ``largest``."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= largest:
        faults[name] = f"{name} is {value}; it must be a whole number from 1 to {largest}."


def check_choice(faults: dict[str, str], name: str, value: str, choices: tuple[str, ...]) -> None:
    """Add a sentence for a field that is none of the choices."""
    if value not in choices:
        faults[name] = f"{name} is {value}; choose one of {', '.join(choices)}."


def raise_first(faults: Mapping[str, str]) -> None:
    """Raise the first of the sentences as a :class:`~gpuguide.errors.GpuguideError`, if there is one."""
    for fault in faults.values():
        raise GpuguideError(fault)
