"""Generating text with a model: prefill, decode, and what makes both fast.

:mod:`~gpuguide.inference.generate` has the loop for one prompt, :mod:`~gpuguide.inference.plain` the layers in plain
PyTorch and :mod:`~gpuguide.inference.fused` the kernels for a GPU. An :class:`Engine` generates several texts at a time
with either.

>>> from gpuguide import models
>>> main = models.load("main")
>>> engine = Engine(prepare(main.model), rows=1, capacity=32)
>>> first = engine.start([main.tokenizer.encode("def __init__(self")])
>>> main.tokenizer.decode(first.tolist())
','
"""

from __future__ import annotations

from gpuguide.inference.cache import PAGE, Cache, empty_cache, static_cache
from gpuguide.inference.decoder import Decoder, prepare
from gpuguide.inference.engine import Engine
from gpuguide.inference.generate import GREEDY

__all__ = ["GREEDY", "PAGE", "Cache", "Decoder", "Engine", "empty_cache", "prepare", "static_cache"]
