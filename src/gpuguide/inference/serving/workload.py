"""Requests as they may come: lengths that vary a lot, and arrivals at random."""

from __future__ import annotations

import numpy as np

from gpuguide.errors import GpuguideError
from gpuguide.inference.serving.requests import Request

MEDIAN = 128
"""Tokens. That of texts is from a conversation service of Azure: 129 (P. Patel et al., "Splitwise: Efficient Generative
LLM Inference Using Phase Splitting", 2024, section III-A). That of prompts is chosen: the service's, 1020, does not fit
into the contexts of small models."""
SIGMA = 1.0
"""Chosen: two of three lengths are between a third of the median and three times as much"""


def lognormal_requests(
    count: int,
    seed: int,
    *,
    vocab_size: int,
    capacity: int,
    prompt_median: float = MEDIAN,
    prompt_sigma: float = SIGMA,
    text_median: float = MEDIAN,
    text_sigma: float = SIGMA,
    rate: float | None = None,
) -> list[Request]:
    """Return requests whose lengths are lognormal: their logarithms are normally distributed.

    The tokens of the prompts are drawn evenly from the vocabulary; how long a request takes does not depend on them.

    Parameters
    ----------
    count : int
        How many.
    seed : int
        The same gives the same requests, and the first ones of more.
    vocab_size : int
        Of the model.
    capacity : int
        Tokens of a prompt and its text together. Longer prompts are cut to half of it, longer texts to what is left.
    prompt_median, text_median : float
        Tokens of the median prompt, and of the median text. The mean is ``exp(sigma² / 2)`` times as large.
    prompt_sigma, text_sigma : float
        Standard deviation of the logarithm; 0 gives all the same length.
    rate : float, optional
        Requests a second, which then arrive at random (a Poisson process); by default all arrive at once.

    Returns
    -------
    list of Request
        In order of arrival, with their places in it as seeds.

    Raises
    ------
    GpuguideError
        If a number is out of its range.
    """
    for name, given, least in (("count", count, 0), ("vocab_size", vocab_size, 1), ("capacity", capacity, 2),
                               ("prompt_median", prompt_median, 1), ("text_median", text_median, 1),
                               ("prompt_sigma", prompt_sigma, 0), ("text_sigma", text_sigma, 0)):  # fmt: skip
        if not given >= least:
            raise GpuguideError(f"Requests are drawn with {name} = {given}; give at least {least}.")
    if rate is not None and not rate > 0:
        raise GpuguideError(f"Requests arrive at a rate of {rate} a second; give one above zero.")
    generator = np.random.default_rng(seed)
    requests, arrival = [], 0.0
    for place in range(count):
        prompt, text = generator.lognormal(np.log([prompt_median, text_median]), [prompt_sigma, text_sigma])
        read = int(min(max(round(prompt), 1), capacity // 2))
        write = int(min(max(round(text), 1), capacity - read))
        tokens = generator.integers(vocab_size, size=read).tolist()
        arrival += generator.exponential(1 / rate) if rate else 0.0
        requests.append(Request(tokens, write, seed=place, arrival=arrival))
    return requests
