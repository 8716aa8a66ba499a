"""Serving many requests with one engine: continuous batching, pages that prompts share, and a promise about latency.

:mod:`~gpuguide.inference.serving.scheduler` has the loop, :mod:`~gpuguide.inference.serving.pace` what fits beside a
step, :mod:`~gpuguide.inference.serving.transfer` how tokens reach the host without a wait,
:mod:`~gpuguide.inference.serving.statistics` what a run did, and :mod:`~gpuguide.inference.serving.workload` makes
requests to measure with.

>>> from gpuguide import models
>>> from gpuguide.inference import Engine, prepare
>>> draft = models.load("draft")
>>> scheduler = Scheduler(Engine(prepare(draft.model), rows=2, capacity=64))
>>> prompts = ["import os", "def __init__(self", "for key in"]
>>> texts = scheduler.run([Request(draft.tokenizer.encode(prompt), new_tokens=4) for prompt in prompts])
>>> [len(text) for text in texts]
[4, 4, 4]
"""

from __future__ import annotations

from gpuguide.inference.host_copy import Clock
from gpuguide.inference.serving.requests import Request, Text
from gpuguide.inference.serving.scheduler import POLICIES, Scheduler
from gpuguide.inference.serving.statistics import Step, Summary, occupancy, summarise
from gpuguide.inference.serving.workload import lognormal_requests

__all__ = ["POLICIES", "Clock", "Request", "Scheduler", "Step", "Summary", "Text", "lognormal_requests", "occupancy",
           "summarise"]  # fmt: skip
