"""The language-model head: hidden states into logits, those of the last layer or of any."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch


def project(hidden: torch.Tensor, head: torch.Tensor) -> torch.Tensor:
    """Turn hidden states into logits: one dot product with each row of the head.

    Parameters
    ----------
    hidden : torch.Tensor
        ``(..., hidden_size)``, after the final norm.
    head : torch.Tensor
        ``(vocab_size, hidden_size)``: in a model with tied heads, the token embedding.

    Returns
    -------
    torch.Tensor
        ``(..., vocab_size)``

    Raises
    ------
    ValueError
        If the sizes do not fit.
    """
    if head.ndim != 2 or hidden.ndim < 1 or hidden.shape[-1] != head.shape[-1]:
        raise ValueError(
            f"The head must be (vocab_size, hidden_size) and the hidden states (..., hidden_size); "
            f"given {tuple(head.shape)} and {tuple(hidden.shape)}."
        )
    return torch.nn.functional.linear(hidden, head)


def logit_lens(
    hidden_states: Sequence[torch.Tensor], final_norm: Callable[[torch.Tensor], torch.Tensor], head: torch.Tensor
) -> torch.Tensor:
    """Return the logits that each layer's hidden state would give if the model ended there.

    Parameters
    ----------
    hidden_states : sequence of torch.Tensor
        The residual stream after the embedding and after each block, all ``(..., hidden_size)``, before the final
        norm. (In ``transformers`` the last of ``hidden_states`` is normalised already; leave that one out.)
    final_norm : callable
        The model's norm before the head.
    head : torch.Tensor
        ``(vocab_size, hidden_size)``

    Returns
    -------
    torch.Tensor
        ``(layers, ..., vocab_size)``, the last being the model's own logits. It takes ``layers`` times the memory of
        those, so pick the positions of interest first.

    Raises
    ------
    ValueError
        If there are no hidden states, or the sizes do not fit.

    References
    ----------
    nostalgebraist, "interpreting GPT: the logit lens", 2020.
    https://www.lesswrong.com/posts/AcKRB8wDpdaN6v6ru/interpreting-gpt-the-logit-lens
    """
    if not hidden_states:
        raise ValueError("There are no hidden states; give that after the embedding and after each block.")
    return torch.stack([project(final_norm(hidden), head) for hidden in hidden_states])
