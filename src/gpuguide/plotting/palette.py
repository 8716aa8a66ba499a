"""Colours and markers: one table for both schemes, and one place that gives each contender its own.

The series colours start from the Okabe-Ito set, which readers with any common colour vision can tell apart,
darkened for the light scheme and lightened for the dark one until each has a contrast of at least 3 to 1
with its background. ``tests/plotting`` checks both properties.

Source of the set: M. Okabe and K. Ito, "Color Universal Design", 2008.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Literal

from gpuguide.errors import unknown

Scheme = Literal["light", "dark", "print"]


@dataclass(frozen=True)
class Theme:
    """The colours of one scheme, as ``#rrggbb``."""

    scheme: Scheme
    background: str
    """What the figure is seen against; the SVG itself is transparent."""
    text: str
    grid: str
    ceiling: str
    """Lines that bound the measurements"""
    faint: str
    """What is shown for comparison only, such as datasheet values"""
    series: dict[str, str]

    def colours(self) -> list[str]:
        """Return all colours, in an order that is that of every scheme."""
        return [self.background, self.text, self.grid, self.ceiling, self.faint, *self.series.values()]


_SERIES = {
    #           light      dark
    "blue":   ("#0067a8", "#62b5f0"),
    "orange": ("#d9640b", "#f2933d"),
    "green":  ("#00795a", "#35c49a"),
    "pink":   ("#a93f80", "#f5b8da"),
    "sky":    ("#3a93c8", "#b4e2ff"),
    "ochre":  ("#6b5500", "#f5ea8a"),
    "violet": ("#43248a", "#8f7af0"),
    "red":    ("#901830", "#c83a3a"),
    "grey":   ("#78828d", "#7f8a99"),
}  # fmt: skip


def _theme(scheme: Scheme, column: int, background: str, text: str, grid: str, ceiling: str, faint: str) -> Theme:
    series = {name: pair[column] for name, pair in _SERIES.items()}
    return Theme(scheme, background, text, grid, ceiling, faint, series)


LIGHT = _theme("light", 0, "#ffffff", "#22272e", "#dde1e6", "#3d444d", "#868e99")
DARK = _theme("dark", 1, "#14181e", "#dce1e8", "#333b46", "#c3cad4", "#7b8694")
PRINT = _theme("print", 0, "#ffffff", "#22272e", "#dde1e6", "#3d444d", "#868e99")
"""The light colours on an opaque white ground, for notebooks outside the site"""

_COUNTERPARTS = dict(zip(LIGHT.colours(), DARK.colours(), strict=True))


@dataclass(frozen=True)
class Style:
    """How one contender is drawn on every page."""

    colour: str
    """A name in :attr:`Theme.series`"""
    marker: str
    """A matplotlib marker, so that series differ without colour too"""
    label: str = ""
    """Its name in text and legends, where that is not the contender's own"""


CONTENDERS = {
    "copy": Style("blue", "o"),
    "matmul-bf16": Style("orange", "s"),
    "matmul-fp16": Style("blue", "o"),
    "matmul-tf32": Style("green", "^"),
    "matmul-fp32": Style("pink", "D"),
    "matmul-fp8": Style("violet", "v"),
    "h2d-pinned": Style("blue", "o"),
    "h2d-pageable": Style("sky", "s"),
    "d2h-pinned": Style("orange", "^"),
    "d2h-pageable": Style("ochre", "D"),
    "launch": Style("grey", "o"),
    "launch-graph": Style("green", "s"),
    "right": Style("blue", "o"),
    "no-synchronize": Style("orange", "s"),
    "no-warm-up": Style("green", "^"),
    "cold-clock": Style("pink", "D"),
    "zeros": Style("violet", "v"),
    "inside-l2": Style("ochre", "P"),
    "torch": Style("blue", "o"),
    "torch-eager": Style("blue", "o"),
    "torch-compile": Style("orange", "s"),
    "torch-compile-chunked": Style("orange", "X", "torch.compile, chunked"),
    "torch-linear-cross-entropy": Style("sky", "h", "PyTorch's linear cross-entropy"),
    "gpuguide": Style("green", "^"),
    "liger": Style("violet", "v", "Liger"),
    "cut-cross-entropy": Style("ochre", "P", "Cut cross-entropy (Apple)"),
    "cut-cross-entropy-exact": Style("ochre", "p", "Cut cross-entropy, exact"),
    "quack": Style("pink", "D", "QuACK"),
    "gpuguide-eager": Style("ochre", "P"),
    "transformers": Style("pink", "D"),
    "torch-topk": Style("blue", "o"),
    "torch-topk-graph": Style("orange", "s"),
    "torch-graph": Style("orange", "s"),
    "train-fp32": Style("pink", "D"),
    "train-bf16": Style("orange", "s"),
    "train-mixed": Style("blue", "o"),
    "train-checkpointed": Style("green", "^"),
    "train-unfused": Style("violet", "v"),
    "forward-bf16": Style("ochre", "P"),
    "gpuguide-triton": Style("green", "^"),
    "gpuguide-gluon": Style("violet", "p"),
    "sdpa-flash": Style("orange", "s", "FlashAttention-2 (PyTorch)"),
    "sdpa-cudnn": Style("blue", "o", "cuDNN"),
    "sdpa-efficient": Style("pink", "D", "memory-efficient"),
    "fa3": Style("ochre", "h", "FlashAttention-3"),
    "fa4": Style("red", "*", "FlashAttention-4"),
    "flex": Style("sky", "v", "FlexAttention"),
    "flex-flash": Style("sky", "<", "FlexAttention on FlashAttention-4"),
    "naive": Style("grey", "X"),
    "naive-compile": Style("grey", "P"),
    "torch-save": Style("blue", "o", "torch.save"),
    "dcp-save": Style("pink", "D", "dcp.save"),
    "dcp-async": Style("ochre", "P", "dcp.async_save"),
    "dcp-async-pinned": Style("orange", "s", "dcp.async_save, pinned"),
    "l1": Style("green", "^"),
    "l2": Style("blue", "o"),
    "shared": Style("orange", "s"),
    "one-load": Style("blue", "o", "one load a thread"),
    "four-loads": Style("orange", "s", "four loads a thread"),
    "nvml": Style("blue", "o"),
    "pandas": Style("pink", "D"),
    "polars": Style("blue", "o"),
    "rows-exchanged": Style("orange", "s", "rows exchanged"),
    "group-first": Style("green", "^", "grouped first"),
    "own-rows": Style("grey", "X", "own rows only"),
    "own-rows-cudf": Style("violet", "D", "own rows only, cuDF"),
    "polars-gpu": Style("green", "D"),
    "polars-gpu-2": Style("violet", "v", "polars-gpu, two GPUs"),
    "small-pieces": Style("sky", "o", "polars-gpu, small pieces"),
    "small-pieces-2": Style("pink", "P", "polars-gpu, two GPUs, small pieces"),
    "dask-cudf-2": Style("ochre", "^", "Dask-cuDF, two GPUs"),
    "polars-gpu-in-memory": Style("sky", "^", "polars-gpu, whole columns"),
    "polars-gpu-4-threads": Style("pink", "s", "polars-gpu, 4 threads read"),
    "in-memory": Style("grey", "X", "in memory"),
    "in-memory-limited": Style("orange", "s", "in memory, limited"),
    "streaming": Style("sky", "v"),
    "streaming-limited": Style("green", "D", "streaming, limited"),
    "streaming-large-limited": Style("violet", "P", "streaming, limited, larger pieces"),
    "duckdb": Style("ochre", "P"),
    "cudf": Style("orange", "s"),
    "cudf-raw": Style("grey", "X"),
    "cudf-pandas": Style("violet", "v"),
    "not-collected": Style("grey", "X"),
    "cold-start": Style("pink", "D"),
    "from-pandas": Style("pink", "D"),
    "from-arrow": Style("orange", "s"),
    "gpuguide-staged": Style("green", "^"),
    "gpuguide-lookup": Style("sky", "v", "gpuguide, guesses from the text"),
    "plain": Style("grey", "X", "a token per step"),
    "static": Style("orange", "s", "static batches"),
    "hf-dynamic": Style("pink", "D", "Transformers"),
    "hf-static": Style("violet", "v", "Transformers, compiled"),
    "hf-continuous": Style("pink", "D", "Transformers, continuous"),
    "hf-continuous-fa4": Style("red", "*", "Transformers, FlashAttention-4"),
    "torch-int8": Style("blue", "o", "PyTorch's int8 matmul"),
    "torch-int4": Style("sky", "h", "PyTorch's int4 matmul"),
    "torchao": Style("ochre", "P"),
    "torchao-graph": Style("ochre", "p", "torchao, captured"),
    "flashinfer": Style("violet", "v", "FlashInfer"),
    "humming": Style("red", "*", "Humming"),
    "gemlite": Style("ochre", "P", "GemLite"),
    "pageable": Style("sky", "s"),
    "pinned": Style("blue", "o"),
    "staged": Style("green", "^", "through a ring"),
    "overlapped": Style("green", "^"),
    "one-after-the-other": Style("orange", "s"),
    "one-after-the-other-unmixed": Style("orange", "P", "one after the other, no graph mixing"),
    "copy-only": Style("blue", "o"),
    "resident": Style("grey", "X"),
    "copy-engine": Style("blue", "o", "copy engine"),
    "kernel": Style("orange", "s"),
    "nccl": Style("blue", "o", "NCCL"),
    "nccl-unmixed": Style("violet", "v", "NCCL, no graph mixing"),
    "symm-mem": Style("orange", "s", "one shot (PyTorch)"),
    "one-shot": Style("violet", "v"),
    "compute-only": Style("blue", "o"),
    "communicate-only": Style("pink", "D"),
    "one-gpu": Style("grey", "X", "one GPU"),
    "peft": Style("pink", "D", "PEFT"),
    "peft-no-autocast": Style("sky", "d", "PEFT, adapters in bf16"),
    "peft-compile": Style("violet", "s", "PEFT, compiled"),
    "peft-compile-chunked-loss": Style("violet", "X", "PEFT, compiled, loss in chunks"),
    "peft-liger": Style("ochre", "v", "PEFT with Liger"),
    "full-finetune-compile": Style("orange", "h", "all weights, compiled"),
    "lora": Style("green", "^", "LoRA"),
    "full": Style("orange", "s", "all weights"),
    "last-layer": Style("sky", "v", "last block"),
    "merged": Style("green", "^"),
    "unmerged": Style("orange", "s"),
    "base": Style("blue", "o"),
    "eager": Style("blue", "o"),
    "compile": Style("orange", "s"),
    "compile-graph": Style("green", "^", "compile, captured"),
    "bf16-compile": Style("orange", "s", "bf16, compiled"),
    "zero-shot": Style("grey", "X", "asked as it is"),
    "in-context": Style("ochre", "P", "examples in the prompt"),
    "new-head": Style("blue", "o", "new head"),
    "new-head-full": Style("blue", "<", "all weights, new head"),
    "soft-prompt": Style("pink", "D", "soft prompt"),
    "top-quarter": Style("sky", "v", "last quarter"),
    "top-half": Style("violet", "p", "last half"),
    "full-layer-rates": Style("orange", "h", "all weights, rates by layer"),
    "from-scratch": Style("red", "*", "from scratch"),
    "fp32": Style("grey", "X", "none of the rungs"),
    "to-bf16": Style("blue", "o", "and bf16"),
    "to-attention": Style("sky", "s", "and fused attention"),
    "to-compile": Style("violet", "^", "and compiled"),
    "to-optimizer": Style("ochre", "v", "and fused AdamW"),
    "to-loss": Style("red", "D", "and loss in chunks"),
    "to-weights": Style("blue", "P", "and weights in bf16"),
    "best": Style("green", "^", "all rungs"),
    "without-bf16": Style("violet", "p", "all but bf16"),
    "without-attention": Style("ochre", "*", "all but fused attention"),
    "without-compile": Style("red", "X", "all but compiling"),
    "without-optimizer": Style("blue", "<", "all but fused AdamW"),
    "without-loss": Style("sky", ">", "all but loss in chunks"),
    "without-weights": Style("violet", "d", "all but weights in bf16"),
    "only-attention": Style("ochre", "o", "only fused attention"),
    "only-compile": Style("red", "s", "only compiled"),
    "only-optimizer": Style("blue", "^", "only fused AdamW"),
    "only-loss": Style("sky", "v", "only loss in chunks"),
    "nanogpt-recipe": Style("orange", "s", "nanoGPT's recipe"),
    "hf-compile": Style("pink", "D", "Transformers, compiled"),
    "best-fed": Style("green", "<", "all rungs, fed"),
    "best-fp8": Style("violet", "p", "all rungs, fp8"),
    "best-autotune": Style("ochre", "h", "all rungs, autotuned"),
    "batch-lists": Style("orange", "s", "lists"),
    "batch-slices": Style("sky", "v", "slices"),
    "batch-nanogpt": Style("violet", "P", "as nanoGPT"),
    "batch-view": Style("ochre", "h", "view of windows"),
    "batch-gather": Style("green", "^", "one index"),
    "dataloader": Style("pink", "D", "DataLoader"),
    "dataloader-4": Style("pink", "d", "DataLoader, 4 workers"),
    "ddp": Style("blue", "o", "DDP"),
    "ddp-static": Style("sky", "v", "DDP, static graph"),
    "after-backward": Style("orange", "s", "summed after backward"),
    "ddp-micro": Style("violet", "P", "DDP, 4 micro-batches"),
    "ddp-micro-no-sync": Style("violet", "d", "DDP, 4 micro-batches, no_sync"),
    "eager-graph": Style("blue", "v", "eager, in a graph"),
    "graph": Style("sky", "v", "eager, in a graph"),
    "compile-blocks": Style("violet", "P", "compile, block by block"),
    "compile-replayed": Style("orange", "<", "compile, in a graph"),
    "reduce-overhead": Style("pink", "D"),
    "by-hand": Style("grey", "X", "written out"),
    "max-autotune": Style("ochre", "h"),
    "cublaslt": Style("sky", "v", "cuBLASLt's epilogue"),
    "fsdp2-reshard": Style("green", "<", "FSDP2, resharded after forward"),
    "torch-default": Style("grey", "X", "PyTorch's defaults"),
    "fused-adamw": Style("sky", "v", "fused AdamW"),
    "chunked-loss": Style("blue", "o", "loss in chunks"),
    "pre-norm": Style("green", "^"),
    "post-norm": Style("orange", "s"),
    "post-norm-xavier": Style("pink", "D", "post-norm, Xavier's start"),
    "no-norm": Style("blue", "o", "no norm"),
    "no-residual": Style("red", "*", "no residual connection"),
    "neither": Style("grey", "X", "no residual connection, no norm"),
    "report": Style("green", "^"),
    "report-optimizer": Style("violet", "p", "report with the optimizer"),
    "item-loop": Style("orange", "s", "a loop with item()"),
    "clip-grad-norm": Style("blue", "o", "clip_grad_norm_"),
    "fixed-beta2": Style("green", "^", "β₂ = 0.95"),
    "scaled-beta2": Style("violet", "p", "β₂ by its half-life in tokens"),
    "constant": Style("grey", "X"),
    "constant-no-warm-up": Style("pink", "D", "constant, no warm-up"),
    "linear": Style("orange", "s"),
    "cosine": Style("green", "^"),
    "cosine-no-warm-up": Style("blue", "o", "cosine, no warm-up"),
    "stable-decay": Style("violet", "p", "constant, then decay"),
    "cosine-climbing": Style("red", "*", "cosine that climbs again"),
    "cosine-micro-steps": Style("ochre", "h", "cosine in micro-steps"),
    "no-clipping": Style("orange", "s", "no clipping"),
    "clip-1": Style("green", "^", "clipped to 1"),
    "clip-0.1": Style("violet", "p", "clipped to 0.1"),
    "checkpoint-all": Style("orange", "s", "checkpointing"),
    "checkpoint-half": Style("orange", "d", "every second layer"),
    "checkpoint-selective": Style("orange", "P", "selective checkpointing"),
    "offload-overlapped": Style("violet", "p", "offload, overlapped"),
    "offload-torch": Style("violet", "h", "save_on_cpu"),
    "step-in-backward": Style("ochre", "<", "step in backward"),
    "8-bit": Style("green", "^", "bf16, 8-bit states"),
    "budget-0.5": Style("pink", "D", "compiled, budget 0.5"),
    "budget-0.2": Style("pink", "*", "compiled, budget 0.2"),
    "everything": Style("red", ">", "all together"),
    "hf-trainer-like": Style("pink", "D", "Transformers, gelu_new"),
    "hf-gelu-tanh": Style("pink", "d", "Transformers, GELU in one"),
    "for-loop": Style("grey", "X", "one parameter at a time"),
    "foreach": Style("sky", "v", "foreach"),
    "fused": Style("blue", "o", "fused"),
    "fused-graph": Style("blue", "<", "fused, in a graph"),
    "compiled": Style("orange", "s", "compiled"),
    "masters-graph": Style("violet", "P", "bf16 with masters, in a graph"),
    "gpuguide-8bit": Style("green", "^", "gpuguide, 8 bits"),
    "gpuguide-8bit-graph": Style("green", ">", "gpuguide, 8 bits, in a graph"),
    "torchao-8bit": Style("red", "D", "torchao, 8 bits"),
    "bitsandbytes-8bit": Style("ochre", "h", "bitsandbytes, 8 bits"),
    "flashoptim": Style("pink", "p", "FlashOptim"),
    "muon": Style("violet", "*", "Muon"),
    "mem-tracker": Style("orange", "s", "MemTracker"),
    "rule-of-16": Style("violet", "P", "16 bytes a parameter"),
    "four-times-weights": Style("pink", "D", "4 × weights"),
    "checkpointed": Style("green", "^", "checkpointed"),
    "captured": Style("violet", "P", "captured"),
    "fsdp2": Style("pink", "D", "FSDP2"),
    "ring-by-hand": Style("orange", "s", "ring by hand"),
    "none": Style("grey", "X", "not summed"),
    "loop": Style("orange", "s", "loop after backward"),
    "loop-async": Style("orange", "h", "loop, all at once"),
    "flat": Style("violet", "P", "one message after backward"),
    "coalesced": Style("ochre", "x", "one group of calls"),
    "ddp-view": Style("blue", "<", "DDP, gradients as views"),
    "ddp-1mb": Style("blue", ">", "DDP, buckets of 1 MB"),
    "ddp-100mb": Style("blue", "P", "DDP, buckets of 100 MB"),
    "ddp-1gb": Style("blue", "8", "DDP, one bucket"),
    "ddp-bf16": Style("blue", "H", "DDP, summed in bf16"),
    "gpuguide-100mb": Style("green", "p", "gpuguide, buckets of 100 MB"),
    "gpuguide-copied": Style("green", "D", "gpuguide, by copies"),
    "gpuguide-copied-rows": Style("green", "h", "gpuguide, by copies, rows gathered"),
    "gpuguide-bf16": Style("ochre", "*", "gpuguide, summed in bf16"),
    "gpuguide-rows": Style("red", "d", "gpuguide, rows gathered"),
    "gpuguide-few": Style("orange", ">", "gpuguide, few blocks"),
    "sum-alone": Style("red", "+", "the sum alone"),
}
"""A new contender gets its line here. Contenders that share a figure need different markers, and different colours
unless one is a setting of the other, whose name its own begins with: ``torch-compile-chunked`` is
``torch-compile``."""

_current: ContextVar[Theme] = ContextVar("theme", default=PRINT)


@contextmanager
def using(theme: Theme) -> Iterator[Theme]:
    """Make ``theme`` the one that :func:`colour` and the drawing functions use."""
    token = _current.set(theme)
    try:
        yield theme
    finally:
        _current.reset(token)


def recolor_for_dark(svg: str) -> str:
    """Return a figure that was drawn in the light scheme as it is in the dark one.

    Each colour of a scheme stands for one role, so a colour in the text says which one is meant.
    """
    return re.sub(r"#[0-9a-f]{6}\b", lambda colour: _COUNTERPARTS.get(colour[0], colour[0]), svg)


def current() -> Theme:
    """Return the theme that is being drawn."""
    return _current.get()


def style(contender: str) -> Style:
    """Return the colour name and marker of a contender, or an error that says where to add it."""
    if contender not in CONTENDERS:
        raise unknown("contender in gpuguide.plotting.palette.CONTENDERS", contender, CONTENDERS)
    return CONTENDERS[contender]


def label(contender: str) -> str:
    """Return what legends call a contender; one without an entry keeps its name."""
    return (CONTENDERS[contender].label if contender in CONTENDERS else "") or contender


def colour(contender: str) -> str:
    """Return the colour of a contender in the scheme that is being drawn, as ``#rrggbb``."""
    return current().series[style(contender).colour]
