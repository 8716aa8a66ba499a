"""Facts that the choice of a backend depends on: the GPU, the installed software, and published measurements."""

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
class MeasuredCase:
    """Measured case of a table."""

    description: str
    """Description of the case"""
    gradients: bool
    causal: bool
    shares_heads: bool
    head_dim: int
    keys: int
    order: tuple[str, ...]
    """Backends that were measured, from the fastest to the slowest"""


@dataclass(frozen=True)
class GPU:
    """GPU, installed software and measurements that the choice depends on."""

    name: str
    capability: tuple[int, int]
    cudnn: int
    """Version of cuDNN, as 91900 for 9.19.0; zero without"""
    has_triton: bool
    has_gluon: bool
    measured_on: str | None
    """Name of the GPU that was measured: this model, or another of its generation"""
    cases: Sequence[MeasuredCase]
    """Measured cases by increasing number of keys, no two alike"""


@torch.compiler.assume_constant_result
def describe_gpu(index: int) -> GPU:
    """Return the facts about a GPU that the choice depends on."""
    return _describe_gpu(index)


@functools.cache
def _describe_gpu(index: int) -> GPU:
    name, capability = torch.cuda.get_device_name(index), torch.cuda.get_device_capability(index)
    measured_on, table = load_measurements(name, capability)
    return GPU(
        name,
        capability,
        torch.backends.cudnn.version() or 0,
        importlib.util.find_spec("triton") is not None,
        _has_gluon(),
        measured_on,
        sort_by_keys(table),
    )


def _has_gluon() -> bool:
    if importlib.util.find_spec("triton") is None:
        return False
    return importlib.util.find_spec("triton.experimental.gluon") is not None


def load_measurements(name: str, capability: tuple[int, int]) -> tuple[str | None, Sequence[Mapping[str, Any]]]:
    """Return the measured cases of a GPU model, or of another of its generation, after the name of that model."""
    models = json.loads(TABLE.read_text(encoding="utf-8"))["devices"]
    same_generation = [model for model, table in models.items() if table["capability"][0] == capability[0]]
    model = name if name in models else next(iter(same_generation), None)
    return model, models[model]["cases"] if model else ()


def sort_by_keys(table: Sequence[Mapping[str, Any]]) -> Sequence[MeasuredCase]:
    """Return the cases of a table by increasing number of keys. Of two with the same keys, the first is kept."""
    unique: dict[tuple[object, ...], MeasuredCase] = {}
    for case in table:
        size, length, mask = case["head_dim"], case["seq_len"], "causal" if case["causal"] else "no mask"
        description = f"{case['pass']}, heads of {size}, {length} keys, {mask}"
        keys = case["pass"] != "forward", case["causal"], case["heads"] != case["kv_heads"], size, length
        unique.setdefault(keys, MeasuredCase(description, *keys, tuple(case["order"])))
    return sorted(unique.values(), key=lambda case: case.keys)
