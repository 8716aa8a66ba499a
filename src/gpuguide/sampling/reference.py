"""Reference sampler: apply temperature, top-k, top-p and min-p, then draw with the Gumbel-max trick.

Give every token an exponentially distributed random time with the token's probability as its rate (an *exponential
race*). Then each token is the first with exactly its probability, so a draw needs no running sum over the vocabulary:
subtract the logarithm of an exponential random number from each logit, and take the token with the largest *perturbed
logit*. Minus the logarithm of an exponential number is a Gumbel number, hence the name Gumbel-max.

The random numbers are a function of seed, step and token (a counter-based generator), without a state. Any processor
can compute any of them at any time, so a result depends neither on the order of the work nor on the rest of the batch.

Source of the random numbers: J. K. Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", 2011, section 4.3
(Philox-4x32 with ten rounds), https://doi.org/10.1145/2063384.2063405.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch

from gpuguide import logits as distributions

NO_TOKEN = -1
"""Token of a row that is not a distribution"""
ROUNDS = 10
MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
KEY_INCREMENTS = 0x9E3779B9, 0xBB67AE85
LOW_BITS = 0xFFFFFFFF


@dataclass(frozen=True)
class SamplingSettings:
    """Sampling settings; see :func:`gpuguide.sampling.sample_token`."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0


def sample_token(
    logits: torch.Tensor, seeds: torch.Tensor, step: torch.Tensor, settings: SamplingSettings
) -> torch.Tensor:
    """Draw one token from each row. Parameters as :func:`gpuguide.sampling.sample_token`; a temperature above zero."""
    usable = is_distribution(logits)
    rows = torch.where(usable.unsqueeze(-1), logits, 0).double()
    kept = distributions.adjust(rows, **asdict(settings))
    tokens = torch.arange(logits.shape[-1], device=logits.device)
    variates = exponential_variates(random_words(seeds.unsqueeze(-1), tokens, step.to(logits.device)))
    return (kept - variates.log()).argmax(dim=-1).where(usable, NO_TOKEN)


def greedy_tokens(logits: torch.Tensor) -> torch.Tensor:
    """Return the token with the largest logit, the first of equals; ``NO_TOKEN`` if a row is not a distribution."""
    return logits.argmax(dim=-1).where(is_distribution(logits), NO_TOKEN)


def is_distribution(logits: torch.Tensor) -> torch.Tensor:
    """Return which rows are distributions, shape ``(...)``: those whose largest logit is a finite number."""
    return torch.isfinite(logits.amax(dim=-1))


def exponential_variates(words: torch.Tensor) -> torch.Tensor:
    """Map random words in [0, 2³²) to exponentially distributed numbers of mean one, in float64.

    Each word stands for the middle of its interval, so that no number is zero or infinite. Small numbers win, so they
    need the most digits: near zero ``log1p`` keeps all of them.
    """
    return -torch.log1p(-(words.double() + 0.5) * 2.0**-32)


def random_words(seeds: torch.Tensor, tokens: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
    """Return a random word in [0, 2³²) for each seed, token and step, one of the four that Philox-4x32 returns.

    Parameters
    ----------
    seeds, tokens, step : torch.Tensor
        int64, of shapes that broadcast. The counter is a quarter of the token, rounded down, and the two halves of the
        step; the key is the seed. So four neighbouring tokens have the four words of one counter.
    """
    zero = torch.zeros_like(seeds + tokens + step)
    counter = [zero + (tokens >> 2 & LOW_BITS), zero + (step & LOW_BITS), zero + (step >> 32 & LOW_BITS), zero]
    key = [seeds & LOW_BITS, seeds >> 32 & LOW_BITS]
    for _ in range(ROUNDS):
        high, low = zip(*(_product(word, by) for word, by in zip(counter[::2], MULTIPLIERS, strict=True)), strict=True)
        counter = [high[1] ^ counter[1] ^ key[0], low[1], high[0] ^ counter[3] ^ key[1], low[0]]
        key = [word + increment & LOW_BITS for word, increment in zip(key, KEY_INCREMENTS, strict=True)]
    which = tokens & 3
    first_two = torch.where(which == 0, counter[0], counter[1])
    return torch.where(which < 2, first_two, torch.where(which == 2, counter[2], counter[3]))


def _product(word: torch.Tensor, by: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the upper and the lower 32 bits of the product of two words."""
    product = word * by  # int64 wraps around, which leaves all 64 bits correct
    return product >> 32 & LOW_BITS, product & LOW_BITS


# --- checks ----------------------------------------------------------------------------------------------


def check(logits: torch.Tensor, seeds: torch.Tensor, settings: SamplingSettings) -> None:
    """Raise a :class:`ValueError` if a setting is out of its range, or tensors do not fit. It reads no values."""
    distributions.check_shape(logits)
    if seeds.dtype != torch.int64 or seeds.shape != logits.shape[:-1] or seeds.device != logits.device:
        raise ValueError(
            f"Seeds must be int64 of shape {tuple(logits.shape[:-1])} on {logits.device}, one for each row of logits; "
            f"given {seeds.dtype} of shape {tuple(seeds.shape)} on {seeds.device}."
        )
    distributions.check_settings(**asdict(settings))


def check_step(step: int | torch.Tensor) -> torch.Tensor:
    """Return the step as an int64 of no dimensions, or raise a :class:`ValueError` if it is not one integer."""
    if isinstance(step, int) and not isinstance(step, bool):
        return torch.tensor(step)
    if isinstance(step, torch.Tensor) and step.dtype == torch.int64 and step.numel() == 1:
        return step.reshape(())
    given = f"{step.dtype} of shape {tuple(step.shape)}" if isinstance(step, torch.Tensor) else repr(step)
    raise ValueError(f"The step must be an integer, or an int64 tensor with one element; given {given}.")
