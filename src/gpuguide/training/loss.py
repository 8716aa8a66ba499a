"""The loss of a language model without all of its logits, whose head is frozen.

A head of 50,000 rows makes more numbers than everything else in a small model. :mod:`gpuguide.cross_entropy` computes
them a chunk at a time and turns each into its gradient at once; as a frozen head needs no gradient, a third of the
products falls away besides. What is needed is the model without its head.

GPT-2 knows 50,257 tokens, an odd number, so the rows of its logits begin at odd places, where a GPU's tensor cores
cannot read them whole: both products then take several times as long. The head gets rows of zeros, which stand for no
token. PyTorch's compiler does the same to the products that it sees.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from gpuguide.cross_entropy import linear_cross_entropy
from gpuguide.errors import GpuguideError
from gpuguide.lora.layer import AdaptedLayer

ROUND = 64
"""The head's rows are filled up to a multiple of it: a row of logits then begins where a GPU reads the fastest"""
CHANGES_OF_LOGITS = ("logit_scale", "logits_scaling", "final_logit_softcapping")
"""Settings of ``transformers`` by which a model changes its logits after the head"""


class WithoutHead(nn.Module):
    """A model that gives hidden states in place of logits, and their loss.

    It is for the training step of the library too:
    ``train_step(TrainingSetup(headless, ...), batches, headless.loss_sum)``.

    Parameters
    ----------
    model : nn.Module
        One of :mod:`gpuguide.models`, one of ``transformers``, or such a one in PEFT's hands.
    chunk : int, optional
        Positions whose logits are there together.

    Raises
    ------
    GpuguideError
        If its head is unknown, has an adapter or a bias, or the model changes its logits after the head.
    """

    def __init__(self, model: nn.Module, chunk: int | None = None) -> None:
        super().__init__()
        self.model = model
        self.chunk = chunk
        self._of_transformers = hasattr(model, "get_output_embeddings")
        _check_head(model, self._head())

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return what the head would read: ``(batch, seq)`` to ``(batch, seq, hidden)``."""
        model: Any = self.model
        if not self._of_transformers:
            return model.final_norm(model.hidden_states(tokens)[-1])
        body = model.get_base_model().base_model if hasattr(model, "get_base_model") else model.base_model
        return body(input_ids=tokens, use_cache=False).last_hidden_state

    def loss_sum(self, hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the sum of the cross-entropies of hidden states, in nats; targets of -100 count for nothing."""
        return self._loss(hidden, targets, "sum")

    def loss(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the mean cross-entropy of the tokens that come next, in nats a target that counts.

        Parameters
        ----------
        tokens, targets : torch.Tensor
            ``(batch, seq)``, int64; a target of -100 does not count.
        """
        return self._loss(self(tokens), targets, "mean")

    def _loss(self, hidden: torch.Tensor, targets: torch.Tensor, reduction: str) -> torch.Tensor:
        head = self._head().weight.to(hidden.dtype)
        missing = -len(head) % ROUND if head.is_cuda else 0
        filled = functional.pad(head, (0, 0, 0, missing)) if missing else head
        return linear_cross_entropy(
            hidden, filled, targets, vocab_size=len(head), reduction=reduction, chunk=self.chunk
        )

    def _head(self) -> Any:
        model: Any = self.model
        return model.get_output_embeddings() if self._of_transformers else getattr(model, "head", None)


def _check_head(model: nn.Module, head: Any) -> None:
    name = type(model).__name__
    if isinstance(head, AdaptedLayer):
        raise GpuguideError(f"The head of {name} has an adapter; leave it out of the targets, or take the whole loss.")
    if not isinstance(head, nn.Linear):
        raise GpuguideError(f"The head of {name} is a {type(head).__name__}; the chunked loss needs an nn.Linear.")
    if getattr(head, "bias", None) is not None:
        raise GpuguideError(f"The head of {name} has a bias, which the chunked loss leaves out; take the whole loss.")
    config = getattr(model, "config", None)
    for setting in CHANGES_OF_LOGITS:
        if getattr(config, setting, None) not in (None, 1, 1.0):
            raise GpuguideError(
                f"{name} changes its logits after the head ({setting}), which the chunked loss does not; "
                "take the whole loss."
            )
