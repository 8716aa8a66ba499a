"""What the scripts of the calculators know: formulas and fields of the cost models, models and GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from gpuguide.costs import failures, limits, memory, presets, transfers
from gpuguide.costs.fields import Field, Rule
from gpuguide.costs.formulas import Formulas, names_in, tree_of
from gpuguide.costs.memory import model
from gpuguide.hardware import datasheet, links
from gpuguide.hardware.datasheet_ceilings import Ceiling, GpuCeilings
from gpuguide.hardware.links import Link
from gpuguide.measure import cards, citation, measured_ceilings, reference_gpu
from gpuguide.site.directives.calculators import step_drawing

MODEL = "llama-3.1-8b"
"""What a calculator shows at first"""
SETUP = memory.Setup(batch=1, seq_len=4096)
CALLS = {
    "weights": "model_weights",
    "offload": "offloaded_layers",
    "cache": "kv_cache",
    "gradients": "gradient_all_reduce",
    "activations": "tensor_parallel_step",
}
"""What of :mod:`gpuguide.costs.transfers` counts each thing, a number of bytes aside"""
HOST_COPY = "ceilings/h2d-pinned:bandwidth"
PEER_COPY = "peer-copy/copy-engine:bandwidth size=4294967296 direction=one"
MULTIPLES = (0.25, 0.5, 1, 2, 4)
"""Intervals between saves that are compared, as multiples of the best one"""
CHANNELS = {
    "copy": "memory, read and written",
    "read": "memory, only read",
    "link": "the link between GPUs",
    "host": "the connection to the host",
}


def fit_data() -> dict[str, Any]:
    """Return what the calculator of memory knows."""
    return {
        "memory": memory_model(),
        "models": [model_data(preset) for preset in presets.load().values()],
        "gpus": card_data(),
        "first": {"model": MODEL, "gpu": reference_gpu.sheet().id},
        "setup": asdict(SETUP),
        "setup_defaults": asdict(memory.Setup()),
        "shape_defaults": memory.Shape.defaults(),
        "part_names": memory.PART_NAMES,
        "step": step_words(),
        "safe_share": memory.SAFE_SHARE,
    }


EXAMPLES: dict[str, tuple[str, dict[str, Any]]] = {
    "GPT-2, 32 × 1024 tokens": ("gpt2", {"batch": 32, "seq_len": 1024}),
    "Transformers' GPT-2, fp32": (
        "gpt2",
        {"precision": "fp32", "batch": 8, "seq_len": 512, "optimizer": "adamw-fused", "activation": "gelu-new"},
    ),
    "Llama 3.2 1B, 4 × 2048": ("llama-3.2-1b", {"batch": 4, "seq_len": 2048}),
}
"""Training steps that the interactive drawing begins with"""
ACTIVATIONS: dict[str, dict[str, Any]] = {
    "kept": {},
    "checkpointing": {"checkpointing": True},
    "every second layer": {"checkpointing": True, "checkpoint_every": 2},
    "selective checkpointing": {"checkpointing": True, "selective": True},
    "offloaded to the host": {"offloaded": True},
}
SWITCHES: tuple[tuple[str, dict[str, Any], str | None], ...] = (
    ("fused AdamW", {"optimizer": "adamw-fused"}, None),
    ("loss in chunks", {"loss": "chunked"}, None),
    ("optimizer in backward", {"optimizer_in_backward": True}, None),
    ("bf16, 8-bit states", {"precision": "bf16", "optimizer": "adamw-8bit"}, None),
    ("fused GELU", {"activation": "fused"}, "gelu-new"),
)
"""What each switch sets, and the activation function of the examples that have it, if not all do"""


def lever_data() -> dict[str, Any]:
    """Return what the interactive drawing of a training step knows."""
    gpu = measured_ceilings.load(reference_gpu.sheet().id)
    return {
        "memory": memory_model(),
        "setup": asdict(memory.Setup()),
        "step": step_words(),
        "gpu": {"name": short(gpu.name), "memory": gpu.capacity},
        "examples": [
            {"label": label, "shape": asdict(presets.shape(model)), "setup": setup}
            for label, (model, setup) in EXAMPLES.items()
        ],
        "activations": [{"label": label, "fields": changed} for label, changed in ACTIVATIONS.items()],
        "switches": [{"label": label, "fields": changed, "when": when} for label, changed, when in SWITCHES],
    }


def step_words() -> dict[str, Any]:
    """Return the order and the words of the drawing of memory over a step."""
    return {"order": step_drawing.ORDER, "moments": step_drawing.MOMENT_WORDS, "parts": memory.PART_NAMES}


def limit_data() -> dict[str, Any]:
    """Return what the calculator of limits knows."""
    return {
        "limits": limits_model(),
        "models": [model_data(preset) for preset in presets.load().values()],
        "machines": [machine_data(measured_ceilings.load(gpu)) for gpu in datasheet.load()],
        "first": {"operation": "matmul", "gpu": reference_gpu.sheet().id},
        "operations": {name: table["label"] for name, table in limits.OPERATIONS.items()},
        "examples": {name: table["first"] for name, table in limits.OPERATIONS.items()},
        "fields": field_data(limits.FIELDS),
        "channels": CHANNELS,
    }


def move_data() -> dict[str, Any]:
    """Return what the calculator of transfers knows."""
    return {
        "transfers": transfers_model(),
        "models": [model_data(preset) for preset in presets.load().values()],
        "links": [link_data(link) for link in links.load().values()],
        "joins": dict(links.JOINS),
        "first": {"what": "weights", "link": "pcie-5-x16", "share": 100, "latency": 0},
        "things": {name: table["label"] for name, table in transfers.THINGS.items()},
        "over": {name: table["over"] for name, table in transfers.THINGS.items()},
        "examples": {name: table["first"] for name, table in transfers.THINGS.items()},
        "fields": field_data(transfers.FIELDS),
        "calls": CALLS,
    }


def save_data() -> dict[str, Any]:
    """Return what the calculator of saves knows."""
    return {
        "failures": failures_model(),
        "first": dict(failures.FIRST),
        "ways": dict(failures.FIELDS["saving"].words or {}),
        "multiples": MULTIPLES,
    }


def memory_model() -> dict[str, Any]:
    """Return the cost model of memory."""
    return {
        "formulas": formula_data(model.FORMULAS),
        "shape": field_data(model.SHAPE_FIELDS),
        "shape_rules": rule_data(model.SHAPE_RULES),
        "setup": field_data(model.SETUP_FIELDS),
        "setup_rules": rule_data(model.SETUP_RULES),
        "moments": {kind: list(moments.items()) for kind, moments in model.MOMENTS.items()},
        "changes": [asdict(change) for change in model.CHANGES],
        "parts": memory.PARTS,
    }


def limits_model() -> dict[str, Any]:
    """Return the cost model of limits."""
    return {
        "operations": {
            name: {
                "formulas": formula_data(limits.formulas(name)),
                "fields": field_data({field: limits.FIELDS[field] for field in table["first"]}),
                "rules": rule_data(limits.rules(name)),
            }
            for name, table in limits.OPERATIONS.items()
        },
        "limit": formula_data(limits.LIMIT),
    }


def transfers_model() -> dict[str, Any]:
    """Return the cost model of transfers."""
    return {
        "things": {
            name: {
                "formulas": formula_data(transfers.formulas(name)),
                "fields": field_data({field: transfers.FIELDS[field] for field in table["first"]}),
                "rules": rule_data(transfers.rules(name)),
            }
            for name, table in transfers.THINGS.items()
        },
        "way": field_data(transfers.WAY),
        "time": formula_data(transfers.TIME),
    }


def failures_model() -> dict[str, Any]:
    """Return the cost model of failures."""
    return {
        "formulas": formula_data(failures.FORMULAS),
        "fields": field_data(failures.FIELDS),
        "rules": rule_data(failures.RULES),
    }


def formula_data(formulas: Formulas) -> dict[str, Any]:
    """Return formulas as the trees that scripts compute."""
    return {"trees": formulas.trees, "constants": formulas.constants}


def field_data(fields: Mapping[str, Field]) -> list[dict[str, Any]]:
    """Return fields, each with the tree that says whether it is shown."""
    return [
        {**{key: value for key, value in vars(field).items() if value}, "when": tree_of(field.when)}
        for field in fields.values()
    ]


def rule_data(rules: Iterable[Rule]) -> list[dict[str, Any]]:
    """Return rules, with the names that each depends on."""
    return [{**vars(rule), "names": sorted(names_in(rule.holds))} for rule in rules]


def model_data(preset: presets.Preset) -> dict[str, Any]:
    """Return a model."""
    return {"id": preset.id, "name": preset.name, "family": preset.family, "shape": asdict(preset.shape)}


def card_data() -> list[dict[str, Any]]:
    """Return all cards whose memory is known, the smallest first."""
    return [
        {"id": card.id, "name": card.name, "memory": card.bytes, "origin": card.origin} for card in cards.load_cards()
    ]


def machine_data(machine: GpuCeilings) -> dict[str, Any]:
    """Return a GPU's ceilings."""

    def ceiling(found: Ceiling) -> dict[str, Any]:
        return {"value": found.value, "origin": found.origin}

    return {
        "id": machine.id,
        "name": short(machine.name),
        "capacity": machine.capacity,
        "arithmetic": {name: ceiling(found) for name, found in machine.arithmetic.items()},
        "bandwidth": {name: ceiling(found) for name, found in machine.bandwidth.items()},
        "launch": ceiling(machine.launch) if machine.launch else None,
        "link_name": machine.link_name,
    }


def link_data(link: Link) -> dict[str, Any]:
    """Return a link's rates, one way, B/s; what is None, nobody prints or has measured."""
    return {
        "id": link.id,
        "name": link.name,
        "joins": link.joins,
        "raw": link.raw,
        "rate": link.per_direction.value,
        "payload": link.payload,
        "total": link.printed_total.value if link.printed_total else None,
        "measured": find_measured_rate(link),
    }


def find_measured_rate(link: Link) -> dict[str, Any] | None:
    """Return what the reference GPU's records say of this link, if that is how it is connected."""
    gpu, figures = short(reference_gpu.sheet().name), reference_gpu.sheet().figures
    for joins, printed, where, what in (
        ("host", "pcie_per_direction", HOST_COPY, f"from pinned memory to {gpu}"),
        ("gpus", "nvlink_per_direction", PEER_COPY, f"by the copy engine between two {gpu}"),
    ):
        if link.joins == joins and printed in figures and figures[printed].value == link.per_direction.value:
            return {"value": citation.measurement(where).summary.median, "what": what}
    return None


def short(name: str) -> str:
    """Return a GPU's name without its vendor's."""
    return name.removeprefix("NVIDIA ")
