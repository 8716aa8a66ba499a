"""A model in use: its weights, the cache of keys and values, and the moments of a forward pass."""

from __future__ import annotations

from collections.abc import Iterator

from gpuguide.costs.memory.setup import Setup
from gpuguide.costs.memory.shape import Local, Shape
from gpuguide.costs.memory.sizes import ELEMENT_SIZE, LIBRARY_WORKSPACE, compute_size, scores


def cache_bytes(shape: Shape, setup: Setup) -> float:
    """Return the bytes of the keys and values of all positions, on one GPU."""
    positions = setup.batch * setup.seq_len
    return 2 * shape.layers * Local(shape, setup.tensor_parallel).keys * positions * ELEMENT_SIZE[setup.cache]


def weight_bytes(shape: Shape, setup: Setup) -> float:
    """Return the bytes of the weights of a model in use, on one GPU."""
    local = Local(shape, setup.tensor_parallel)
    matrices = shape.layers * local.matrices
    rest = ELEMENT_SIZE["fp32" if setup.precision == "fp32" else "bf16"]
    return matrices * ELEMENT_SIZE[setup.precision] + (local.total - matrices) * rest


def inference(shape: Shape, setup: Setup) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield the moments of a forward pass: the name of each, and what is in memory then."""
    local, tokens = Local(shape, setup.tensor_parallel), setup.batch * setup.seq_len
    generates = setup.purpose == "generate"
    compute = compute_size(setup)
    fixed = {
        "weights": weight_bytes(shape, setup),
        "cache": cache_bytes(shape, setup) if generates else 0.0,
        "workspace": 1.0 * LIBRARY_WORKSPACE,
    }
    inputs = 16.0 * tokens
    wide = tokens * (3 * shape.hidden + (3 if shape.gated else 2) * local.inner) * compute
    if not setup.fused_attention:
        plain = 2 * scores(shape, setup) + tokens * (2 * shape.hidden * compute + 3 * local.queries * (compute + 4))
        wide = max(wide, plain)
    yield "widest layer", {**fixed, "activations": inputs, "temporary": wide}
    scored = setup.batch if generates else tokens
    yield (
        "logits",
        {
            **fixed,
            "activations": inputs + 2 * compute * tokens * shape.hidden,
            "logits": compute * scored * local.vocab,
        },
    )
