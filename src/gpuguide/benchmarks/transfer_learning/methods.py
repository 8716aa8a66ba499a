"""The methods of transfer learning that are compared, and the parameters that each of them trains."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from gpuguide import lora
from gpuguide.finetuning.return_types import KINDS
from gpuguide.models.gpt2 import GPT2
from gpuguide.transfer_learning import NewHead, NextToken, SoftPrompt, layer_rates, train_only

PROMPT_LENGTH = 16
RANK = 16
DECAY = 0.7
"""Ratio of a layer's learning rate to the next one's, where they differ"""
HEAD_RATE = 30.0
"""Ratio of the learning rate of a new head to that of the pretrained weights, where both are trained"""
Groups = Sequence[dict[str, Any]]
"""Parameter groups of an optimizer, each with a learning rate"""


@dataclass(frozen=True)
class TransferMethod:
    """A method that trains a part of a model."""

    prepare: Callable[[GPT2], nn.Module]
    """Takes a model of its own, and returns what answers, its parameters frozen or not"""
    decay: float = 1.0
    """Ratio of a layer's learning rate to the next one's; below one, lower layers learn more slowly"""
    head_rate: float = 1.0
    """Ratio of the head's learning rate to the rest's; above one, a new head learns faster"""
    on_features: bool = False
    """The model below the head is frozen whole, so what it says of the texts is computed once"""

    def groups(self, module: nn.Module, learning_rate: float) -> Groups:
        """Return what is trained, for an optimizer."""
        if self.head_rate != 1.0:
            rest, head = layer_rates([module.get_submodule("model"), module.get_submodule("fc")], learning_rate, 1.0)
            return [rest, {**head, "lr": self.head_rate * learning_rate}]
        if self.decay == 1.0:
            return layer_rates([module], learning_rate)
        model = module.get_submodule("model")
        assert isinstance(model, GPT2)
        first = nn.ModuleList([model.token_embedding, model.position_embedding])
        return layer_rates([first, *model.blocks, model.final_norm], learning_rate, self.decay)


def new_head(model: GPT2) -> nn.Module:
    """Feature extraction: a new head on a frozen model."""
    module = NewHead(model, len(KINDS)).to(model.head.weight.device)
    train_only(module, "fc.*")
    return module


def all_with_new_head(model: GPT2) -> nn.Module:
    """Full fine-tuning below a new head, which knows no words for the answers."""
    return NewHead(model, len(KINDS)).to(model.head.weight.device)


def top_layers(share: float) -> Callable[[GPT2], nn.Module]:
    """Partial fine-tuning: the last layers and the final norm. The head stays, which is tied to the embedding."""

    def prepare(model: GPT2) -> nn.Module:
        module = NextToken(model)
        layers = len(model.blocks)
        trained = range(layers - max(round(share * layers), 1), layers)
        train_only(module, "model.final_norm.*", *(f"model.blocks.{layer}.*" for layer in trained))
        return module

    return prepare


def adapters(model: GPT2) -> nn.Module:
    """LoRA beside all four matrices of each layer."""
    settings = lora.Settings(rank=RANK, alpha=2 * RANK)
    lora.add_adapters(model, ["query_key_value", "out", "up", "down"], settings)
    return NextToken(model)


def soft_prompt(model: GPT2) -> nn.Module:
    """Prompt tuning."""
    return SoftPrompt(model, PROMPT_LENGTH)


def from_scratch(model: GPT2) -> nn.Module:
    """Train everything from new weights, as if there were no pretrained ones."""
    with torch.device(model.head.weight.device):
        return NextToken(GPT2(model.config))


METHODS = {
    "new-head": TransferMethod(new_head, on_features=True),
    "soft-prompt": TransferMethod(soft_prompt),
    "top-quarter": TransferMethod(top_layers(1 / 4)),
    "top-half": TransferMethod(top_layers(1 / 2)),
    "lora": TransferMethod(adapters),
    "full": TransferMethod(NextToken),
    "new-head-full": TransferMethod(all_with_new_head, head_rate=HEAD_RATE),
    "full-layer-rates": TransferMethod(NextToken, decay=DECAY),
    "from-scratch": TransferMethod(from_scratch),
}
