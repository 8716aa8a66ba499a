"""Record the six snapshots that the reader is tested on, with a GPU in one to two minutes.

    python tests/training_memory/make_snapshots.py OUT

Each is a small training of GPT-2's shape, so that a compressed file has about a hundred kilobytes. A process of its own
records each, since cuBLAS's workspaces and compiled code of another would be in use before the history. A JSON file for
each has what the allocator itself counted, and words that the reader's sentences must have.
"""

from __future__ import annotations

import json
import lzma
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from gpuguide.measure.timing import on_side_stream
from gpuguide.models.gpt2 import GPT2, GPT2Config

SHAPE = GPT2Config(vocab_size=8192, context=512, layers=4, heads=8, hidden=512)
BATCH, SEQ_LEN, STEPS = 8, 512, 3
EXPECTED = {
    "eager": [],
    "checkpointed": [],
    "compiled": [],
    "leak": ["hold their graphs"],
    "captured": ["Pools of CUDA graphs"],
    "oom": ["no setting of the allocator serves it"],
}
"""Words that the sentences about each must have"""


def batch() -> torch.Tensor:
    """Return tokens."""
    return torch.randint(SHAPE.vocab_size, (BATCH, SEQ_LEN), device="cuda")


def loss_of(model: GPT2, tokens: torch.Tensor, recomputes: bool = False) -> torch.Tensor:
    """Return the loss of tokens under autocast."""
    with torch.autocast("cuda", torch.bfloat16):
        hidden = model.embed(tokens)
        for block in model.blocks:
            hidden = checkpoint(block, hidden, use_reentrant=False) if recomputes else block(hidden)
        logits = model.head(model.final_norm(hidden))
        return functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())


def train(kind: str) -> Iterator[Any]:
    """Train a new model for some steps, and yield all that must be alive when the snapshot is taken."""
    model = GPT2(SHAPE).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, capturable=kind == "captured")
    if kind == "compiled":
        for block in model.blocks:
            block.compile(dynamic=False)
    kept = []

    def step() -> None:
        loss_of(model, tokens, kind == "checkpointed").backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)

    tokens = batch()
    for _ in range(STEPS):
        if kind == "leak":
            kept.append(loss_of(model, tokens))
        else:
            loss_of(model, tokens, kind == "checkpointed").backward()
            optimizer.step()
            optimizer.zero_grad()
    if kind == "oom":
        try:
            kept.append(torch.empty(2**42, dtype=torch.uint8, device="cuda"))
        except torch.OutOfMemoryError:
            kept.append(torch.zeros(1, device="cuda"))
    if kind == "captured":
        on_side_stream(step)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        graph.replay()
        kept.append(graph)
    yield model, optimizer, kept


def record(kind: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a snapshot, and what the allocator counted."""
    torch.manual_seed(0)
    torch.cuda.init()
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.memory._record_memory_history(max_entries=200_000, stacks="python")
    training = train(kind)
    alive = next(training)
    torch.cuda.synchronize()
    stats = torch.cuda.memory_stats()
    snapshot = torch.cuda.memory._snapshot()
    torch.cuda.memory._record_memory_history(enabled=None)
    del alive
    counted = {name: stats[f"{name}.all.peak"] for name in ("requested_bytes", "allocated_bytes", "reserved_bytes")}
    return snapshot, {**counted, "torch": torch.__version__, "sentences": EXPECTED[kind]}


def shorten(snapshot: dict[str, Any], known: Callable[[str], str]) -> dict[str, Any]:
    """Return a snapshot whose frames name no folder of the machine, and no module beyond what is read."""
    seen: dict[tuple[str, int, str], dict[str, Any]] = {}

    def frames(given: list[dict[str, Any]]) -> list[dict[str, Any]]:
        found = []
        for each in given:
            key = known(each["filename"]), each["line"], each["name"]
            found.append(seen.setdefault(key, dict(zip(("filename", "line", "name"), key, strict=True))))
        return found

    keep = ("action", "addr", "size", "stream", "device_free")
    traces = [
        [
            {**{name: event[name] for name in keep if name in event}, "frames": frames(event.get("frames", []))}
            for event in trace
        ]
        for trace in snapshot["device_traces"]
    ]
    segments = []
    for segment in snapshot["segments"]:
        blocks = [
            {
                **{name: block[name] for name in ("address", "size", "requested_size", "state") if name in block},
                "frames": frames(block.get("frames", [])),
            }
            for block in segment["blocks"]
        ]
        names = ("device", "address", "total_size", "stream", "segment_pool_id", "is_expandable")
        segments.append({**{name: segment[name] for name in names if name in segment}, "blocks": blocks})
    return {"segments": segments, "device_traces": traces}


def without_folders(filename: str) -> str:
    """Return a file's name as it is in a package, or in the project."""
    for mark in ("site-packages/", "dist-packages/"):
        if mark in filename:
            return f"/lib/python3/{mark}{filename.split(mark, 1)[1]}"
    for mark in ("src/gpuguide/", "tests/", "torchinductor_"):
        if mark in filename:
            return f"/project/{mark}{filename.split(mark, 1)[1]}"
    return filename


def main() -> None:
    """Write one of them into a folder, or all, each by a process of its own."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    if len(sys.argv) == 2:
        for kind in EXPECTED:
            subprocess.run([sys.executable, __file__, str(folder), kind], check=True)
        return
    for kind in sys.argv[2:]:
        snapshot, counted = record(kind)
        data = lzma.compress(pickle.dumps(shorten(snapshot, without_folders)), preset=9)
        (folder / f"{kind}.pickle.xz").write_bytes(data)
        (folder / f"{kind}.json").write_text(json.dumps(counted, indent=1) + "\n", encoding="utf-8")
        print(kind, len(data), counted, flush=True)


if __name__ == "__main__":
    main()
