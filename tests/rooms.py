"""The rooms of the library: which there are, what is in them, and whom each may import."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1] / "src"
PACKAGE = SOURCE / "gpuguide"
MAY_IMPORT = {
    "file_kinds": set[str](),
    "checkpoint_files": {"file_kinds"},
    "hardware": set[str](),
    "measure": {"hardware"},
    "triton_support": set[str](),
    "costs": {"hardware"},
    "systems": {"triton_support", "costs"},
    "topic": {"file_kinds", "checkpoint_files", "triton_support", "costs"},
    "quantization": {"triton_support"},
    "training": {"topic", "triton_support", "costs"},
    "models": {"file_kinds", "checkpoint_files", "training", "topic", "triton_support", "costs", "hardware"},
    "inference": {"models", "quantization", "topic", "triton_support", "costs"},
    "finetuning": {
        "file_kinds",
        "checkpoint_files",
        "models",
        "training",
        "quantization",
        "topic",
        "measure",
        "triton_support",
        "costs",
        "hardware",
    },
    "pretraining": {
        "file_kinds",
        "checkpoint_files",
        "finetuning",
        "models",
        "training",
        "topic",
        "measure",
        "costs",
        "hardware",
    },
    "interconnect": {"hardware", "triton_support", "costs"},
    "collectives": {"costs", "hardware"},
    "clusters": set[str](),
    "benchmarks": {
        "measure",
        "hardware",
        "finetuning",
        "inference",
        "quantization",
        "training",
        "interconnect",
        "collectives",
        "clusters",
        "topic",
        "models",
        "systems",
        "triton_support",
        "costs",
    },
    "claims": {"measure", "hardware"},
    "plotting": {"measure", "hardware", "costs"},
    "site": {"plotting", "claims", "measure", "hardware", "costs"},
    "cli": {
        "plotting",
        "claims",
        "benchmarks",
        "measure",
        "inference",
        "finetuning",
        "pretraining",
        "training",
        "topic",
        "interconnect",
        "clusters",
        "models",
        "costs",
        "hardware",
    },
}
"""Whom each room may import beside itself and the modules of everyone. What is no room here is a topic; topics may
import one another."""
FOR_EVERYONE = {"errors", "files", "units"}
"""Modules at the root of the package that every room may import"""


@cache
def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def room(module: str) -> str:
    """The room that a module is in: one of MAY_IMPORT, or `gpuguide`."""
    parts = module.split(".")
    if len(parts) == 1:
        return "gpuguide"
    if parts[1] == "__main__":
        return "cli"
    return "gpuguide" if parts[1] in FOR_EVERYONE else parts[1] if parts[1] in MAY_IMPORT else "topic"


@cache
def imported(module: str) -> frozenset[str]:
    """The gpuguide modules that a module imports anywhere in it, also inside functions."""
    names = set()
    for node in ast.walk(ast.parse(modules()[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}, line {node.lineno}: import by the full name"
            asked = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= {name if name in modules() else str(node.module) for name in asked}
    return frozenset(names & set(modules()))
