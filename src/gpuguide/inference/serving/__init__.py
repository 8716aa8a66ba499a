"""Serving many requests with one engine: continuous batching, prefix sharing, chunked prefill and a latency SLO.

:mod:`~gpuguide.inference.serving.scheduler` has the loop, :mod:`~gpuguide.inference.serving.prefill_budget` the token
budget of chunked prefill, :mod:`~gpuguide.inference.serving.prefill_chunks` what each step prefills,
:mod:`gpuguide.inference.host_copy` the asynchronous copies of tokens to the host,
:mod:`~gpuguide.inference.serving.statistics` the statistics of a run,
:mod:`~gpuguide.inference.serving.workload` requests to measure with, :mod:`~gpuguide.inference.serving.load_test`
requests that arrive over time, with goodput, and :mod:`~gpuguide.inference.serving.simulation` a server whose steps
take a given time.

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
from gpuguide.inference.serving.statistics import ServingSummary, Step, occupancy, summarise
from gpuguide.inference.serving.workload import lognormal_requests

__all__ = [
           "POLICIES",
           "Clock",
           "Request",
           "Scheduler",
           "ServingSummary",
           "Step",
           "Text",
           "lognormal_requests",
           "occupancy",
           "summarise",
]  # fmt: skip
