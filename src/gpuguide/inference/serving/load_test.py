"""Load tests: requests that arrive over time, and how many of them meet a service-level objective (SLO).

>>> from gpuguide.inference.serving import Request
>>> requests = with_arrivals([Request([0], new_tokens=1)] * 3, rate=10.0)
>>> [round(request.arrival, 2) for request in requests]
[0.07, 0.17, 0.17]

References
----------
Y. Zhong et al., "DistServe: Disaggregating Prefill and Decoding for Goodput-optimized Large Language Model Serving",
2024: goodput. ``vllm bench serve`` has the same options: ``--request-rate``, ``--burstiness`` and ``--goodput``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import inf

import numpy as np

from gpuguide.errors import GpuguideError
from gpuguide.inference.serving.requests import CANCELLED, Request, Text


def with_arrivals(requests: Iterable[Request], rate: float, *, burstiness: float = 1.0, seed: int = 0) -> list[Request]:
    """Return the requests with arrival times drawn at random.

    Parameters
    ----------
    requests : iterable of Request
        In the order in which they will arrive.
    rate : float
        Mean number of requests per second.
    burstiness : float
        Shape of the gamma distribution of the times between arrivals: 1 gives a Poisson process, a smaller value
        clusters the requests in bursts, a larger one spaces them evenly.
    seed : int
        The same seed gives the same times.

    Raises
    ------
    GpuguideError
        If the rate or the burstiness is not a finite number above zero.
    """
    for name, given in (("rate", rate), ("burstiness", burstiness)):
        if not 0 < given < inf:
            raise GpuguideError(f"Requests arrive with {name} = {given}; give a finite number above zero.")
    requests = list(requests)
    gaps = np.random.default_rng(seed).gamma(burstiness, 1 / (rate * burstiness), size=len(requests))
    return [replace(request, arrival=float(time)) for request, time in zip(requests, gaps.cumsum(), strict=True)]


def time_per_output_token(text: Text) -> float | None:
    """Return the mean seconds from one token to the next (TPOT): 0 for a single token, ``None`` without one."""
    if not text.times:
        return None
    return (text.times[-1] - text.times[0]) / max(len(text.times) - 1, 1)


def slo_attainment(texts: Iterable[Text], *, ttft: float, tpot: float) -> float:
    """Return the share of the requests that meet an SLO.

    A request meets it if its time to first token is at most ``ttft`` and its time per output token at most ``tpot``. A
    request without a token, or one that was cancelled, does not.

    Parameters
    ----------
    texts : iterable of Text
        All of them, as the scheduler's ``texts.values()``.
    ttft, tpot : float
        Limits in seconds.

    Raises
    ------
    GpuguideError
        If there is no request, or a limit is not above zero.
    """
    for name, limit in (("ttft", ttft), ("tpot", tpot)):
        if not limit > 0:
            raise GpuguideError(f"The SLO has {name} = {limit} s; give a time above zero.")
    met = [_meets(text, ttft, tpot) for text in texts]
    if not met:
        raise GpuguideError("There are no requests; serve at least one before asking for its SLO.")
    return sum(met) / len(met)


def goodput(texts: Iterable[Text], *, ttft: float, tpot: float) -> float:
    """Return the requests per second that meet an SLO, from the first arrival to the last token.

    Parameters and errors as :func:`slo_attainment`.
    """
    texts = list(texts)
    met = slo_attainment(texts, ttft=ttft, tpot=tpot) * len(texts)
    return met / duration(texts) if met else 0.0


def duration(texts: Sequence[Text]) -> float:
    """Return the seconds from the first arrival to the last token."""
    return max(text.times[-1] for text in texts if text.times) - min(text.arrival for text in texts)


def _meets(text: Text, ttft: float, tpot: float) -> bool:
    first, mean = text.time_to_first_token, time_per_output_token(text)
    if text.reason == CANCELLED or first is None or mean is None:
        return False
    return first <= ttft and mean <= tpot
