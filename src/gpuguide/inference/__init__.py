"""Writing text with a model: prefill, decode, and what makes both fast.

:mod:`~gpuguide.inference.plain` explains, :mod:`~gpuguide.inference.fused` has the kernels for a GPU, and an
:class:`Engine` writes with either.

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
from gpuguide.inference.engine import GREEDY, Engine

__all__ = ["GREEDY", "PAGE", "Cache", "Decoder", "Engine", "empty_cache", "prepare", "static_cache"]
