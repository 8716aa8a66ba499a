"""What the choice of a backend depends on beside the tensors: the GPU, what is installed, and what was measured."""

from __future__ import annotations

import functools
import importlib.util
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

TABLE = Path(__file__).with_name("choices.json")


@dataclass(frozen=True)
class Measured:
    """A case of the table."""

    what: str
    """The case in words"""
    gradients: bool
    causal: bool
    shares_heads: bool
    head_dim: int
    keys: int
    order: tuple[str, ...]
    """The backends that did it, from the fastest to the slowest"""


@dataclass(frozen=True)
class GPU:
    """What the choice depends on beside the tensors."""

    name: str
    capability: tuple[int, int]
    cudnn: int
    """The version, as 91900 for 9.19.0; zero without"""
    has_triton: bool
    has_gluon: bool
    measured_on: str | None
    """The GPU whose measurements count: this kind, or another of its generation"""
    cases: Sequence[Measured]
    """From few keys to many; no two are asked for in the same words"""


@torch.compiler.assume_constant_result
def gpu_of(index: int) -> GPU:
    """Return what is known of a GPU."""
    return _gpu_of(index)


@functools.cache
def _gpu_of(index: int) -> GPU:
    name, capability = torch.cuda.get_device_name(index), torch.cuda.get_device_capability(index)
    measured_on, table = measured(name, capability)
    return GPU(
        name,
        capability,
        torch.backends.cudnn.version() or 0,
        importlib.util.find_spec("triton") is not None,
        _has_gluon(),
        measured_on,
        by_keys(table),
    )


def _has_gluon() -> bool:
    if importlib.util.find_spec("triton") is None:
        return False
    return importlib.util.find_spec("triton.experimental.gluon") is not None


def measured(name: str, capability: tuple[int, int]) -> tuple[str | None, Sequence[Mapping[str, Any]]]:
    """Return the table of a kind of GPU, or that of another of its generation, and of which kind it is."""
    kinds = json.loads(TABLE.read_text(encoding="utf-8"))["devices"]
    alike = [kind for kind, table in kinds.items() if table["capability"][0] == capability[0]]
    found = name if name in kinds else next(iter(alike), None)
    return found, kinds[found]["cases"] if found else ()


def by_keys(table: Sequence[Mapping[str, Any]]) -> Sequence[Measured]:
    """Return the cases of a table, from few keys to many. Of two that are asked for alike the first counts."""
    found: dict[tuple[object, ...], Measured] = {}
    for case in table:
        size, length, mask = case["head_dim"], case["seq_len"], "causal" if case["causal"] else "no mask"
        what = f"{case['pass']}, heads of {size}, {length} keys, {mask}"
        asked = case["pass"] != "forward", case["causal"], case["heads"] != case["kv_heads"], size, length
        found.setdefault(asked, Measured(what, *asked, tuple(case["order"])))
    return sorted(found.values(), key=lambda case: case.keys)
