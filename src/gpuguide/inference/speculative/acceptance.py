"""Accepting drafted tokens, so that what is written is what the target model would have written.

Greedy decoding accepts what the target would have chosen itself (:func:`agree`). Sampling accepts by chance, with the
one rule that leaves the target's distribution as it is (:func:`accept`). :func:`accept_logits` is that rule from logits
to tokens, on a GPU in the kernels of :mod:`gpuguide.inference.speculative.kernels`.

References
----------
Y. Leviathan, M. Kalman, Y. Matias, "Fast Inference from Transformers via Speculative Decoding", 2023, sections 2.2 and
2.3, https://arxiv.org/abs/2211.17192.
"""

from __future__ import annotations

from dataclasses import asdict

import torch

from gpuguide.logits import adjust, softmax
from gpuguide.sampling.reference import SamplingSettings, is_distribution
from gpuguide.triton_support import supports_triton


def agree(chosen: torch.Tensor, drafted: torch.Tensor) -> torch.Tensor:
    """Return how many drafted tokens greedy decoding accepts: those before the first that it would not have chosen.

    Parameters
    ----------
    chosen : torch.Tensor
        ``(rows, k + 1)``: the target's most likely token at each place, given the drafted tokens before it.
    drafted : torch.Tensor
        ``(rows, k)``

    Returns
    -------
    torch.Tensor
        ``(rows,)``, int64, from 0 to ``k``. The tokens of the text are as many of ``chosen``, and one more.
    """
    return (chosen[:, :-1] == drafted).cumprod(dim=1).sum(dim=1)


def accept(
    target_probabilities: torch.Tensor,
    draft_probabilities: torch.Tensor,
    drafted: torch.Tensor,
    uniforms: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Accept drafted tokens so that what is written has the target's distribution, whatever the draft's is.

    A token ``x`` was drawn with the draft's probability ``q(x)``, and should come with the target's, ``p(x)``. It is
    accepted with probability ``min(1, p(x) / q(x))``, so it comes this way with ``min(p(x), q(x))``. What is missing
    to ``p(x)`` is ``max(0, p(x) - q(x))``, and from there, scaled to add up to one, the token that replaces the first
    rejected one is drawn. If all are accepted, one more is drawn from the target's last distribution.

    Nothing waits for the device.

    Parameters
    ----------
    target_probabilities : torch.Tensor
        ``(rows, k + 1, vocab_size)``, floating point: at each place, given the drafted tokens before it.
    draft_probabilities : torch.Tensor
        ``(rows, k, vocab_size)``: the distributions that the tokens were drawn from.
    drafted : torch.Tensor
        ``(rows, k)``, int64
    uniforms : torch.Tensor
        ``(rows, k + 1)``, float64, uniform between 0 and 1, neither included, and independent: one for each drafted
        token, and one for the draw.

    Returns
    -------
    count : torch.Tensor
        ``(rows,)``, int64: accepted tokens, from 0 to ``k``.
    following : torch.Tensor
        ``(rows,)``, int64: the token after them.

    Raises
    ------
    ValueError
        If shapes do not fit. Values are not looked at.

    References
    ----------
    Leviathan et al., 2023, section 2.3, and appendix A.1 for the proof.
    """
    k = drafted.shape[1]
    _check_accept(target_probabilities, draft_probabilities, drafted, uniforms)
    of_target = target_probabilities[:, :k].gather(2, drafted[:, :, None]).squeeze(2)
    of_draft = draft_probabilities.gather(2, drafted[:, :, None]).squeeze(2)
    count = (uniforms[:, :k] * of_draft < of_target).cumprod(dim=1).sum(dim=1)

    rejected = count.clamp(max=k - 1)[:, None]
    p = target_probabilities.take_along_dim(count[:, None, None], dim=1).squeeze(1)
    q = draft_probabilities.take_along_dim(rejected[:, :, None], dim=1).squeeze(1)
    missing = (p - q * (count < k)[:, None]).clamp(min=0)
    sums = missing.cumsum(dim=1, dtype=torch.float64)
    following = torch.searchsorted(sums, uniforms[:, k:] * sums[:, -1:], right=True)
    # Where p and q differ by a rounding error only, a token can be rejected with nothing missing anywhere.
    return count, torch.where(sums[:, -1:] > 0, following, drafted.gather(1, rejected)).squeeze(1)


def _check_accept(target: torch.Tensor, draft: torch.Tensor, drafted: torch.Tensor, uniforms: torch.Tensor) -> None:
    rows, k = drafted.shape
    vocab = target.shape[-1]
    for name, given, wanted in (
        ("target_probabilities", target, (rows, k + 1, vocab)),
        ("draft_probabilities", draft, (rows, k, vocab)),
        ("uniforms", uniforms, (rows, k + 1)),
    ):
        if given.shape != wanted:
            raise ValueError(f"{name} must have the shape {wanted} for {k} drafted tokens; given {tuple(given.shape)}.")


def accept_logits(
    target_logits: torch.Tensor,
    draft_logits: torch.Tensor | None,
    drafted: torch.Tensor,
    uniforms: torch.Tensor,
    settings: SamplingSettings,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Accept drafted tokens by the logits of both models.

    Parameters
    ----------
    target_logits : torch.Tensor
        ``(rows, k + 1, vocab_size)``
    draft_logits : torch.Tensor or None
        ``(rows, k, vocab_size)``; ``None`` if the tokens were not drawn, but certain.
    drafted, uniforms
        As in :func:`accept`.
    settings : SamplingSettings
        By which the tokens were drawn, and are to be; with a temperature above zero.

    Returns
    -------
    count : torch.Tensor
        ``(rows,)``, int64: accepted tokens.
    tokens : torch.Tensor
        ``(rows, k + 1)``, int64: the accepted ones, the one after them, and then anything.
    """
    if supports_triton(target_logits):
        from gpuguide.inference.speculative import kernels

        return kernels.accept(target_logits, draft_logits, drafted, uniforms, settings)
    p = probabilities(target_logits, settings)
    q = (
        torch.zeros_like(p[:, :-1]).scatter_(2, drafted[:, :, None], 1.0)
        if draft_logits is None
        else probabilities(draft_logits, settings)
    )
    count, following = accept(p, q, drafted, uniforms)
    tokens = torch.cat([drafted, following[:, None]], dim=1)
    return count, tokens.scatter(1, count[:, None], following[:, None])


def probabilities(logits: torch.Tensor, settings: SamplingSettings) -> torch.Tensor:
    """Return the probabilities that :func:`gpuguide.sampling.sample_token` draws by, in float64.

    Logits and probabilities have the shape ``(..., vocab_size)``. A row that is no distribution gives anything, for
    rows without a text are computed with the others.
    """
    rows = torch.where(is_distribution(logits).unsqueeze(-1), logits, 0).double()
    return softmax(adjust(rows, **asdict(settings)))
