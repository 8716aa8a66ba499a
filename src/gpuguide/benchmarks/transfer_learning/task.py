"""The task that all methods are compared on: which type does a function return?"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
from torch import nn

from gpuguide import models
from gpuguide.benchmarks.transfer_learning.training import BATCH, Examples
from gpuguide.finetuning import return_types
from gpuguide.finetuning.return_types import Encoded
from gpuguide.models.gpt2 import GPT2
from gpuguide.transfer_learning import NewHead, prepend_examples


@cache
def load_checkpoint(name: str, device: str) -> models.Loaded:
    """Return a pretrained model with its tokenizer, once for all contenders, which copy it."""
    found = models.load(name)
    found.model.to(device)
    return found


def load_model(name: str, device: str) -> GPT2:
    """Return the model alone."""
    model = load_checkpoint(name, device).model
    assert isinstance(model, GPT2)
    return model


@cache
def part(which: str, name: str, device: str) -> Encoded:
    """Return all functions of a part, ``training``, ``validation`` or ``held-out``, as tokens on a device."""
    functions = {
        "training": return_types.training,
        "validation": return_types.validation,
        "held-out": return_types.load_held_out,
    }[which]()
    return return_types.encode(functions, load_checkpoint(name, device).tokenizer).to(device)


def draw_functions(count: int, name: str, device: str, draw: int) -> Encoded:
    """Return functions to train on, others for each draw."""
    training = part("training", name, device)
    order = torch.randperm(len(training), generator=torch.Generator().manual_seed(draw))
    return training.select(order[:count].to(device))


def examples_for(module: nn.Module, texts: Encoded) -> Examples:
    """Return functions as a module is trained on them."""
    wanted = texts.kinds if isinstance(module, NewHead) else texts.answers[texts.kinds]
    return Examples((texts.tokens, texts.last), wanted)


def scores_of_kinds(module: nn.Module, tokens: torch.Tensor, last: torch.Tensor, answers: torch.Tensor) -> torch.Tensor:
    """Return the scores of the nine answers, ``(texts, kinds)``."""
    scores: torch.Tensor = module(tokens, last)
    return scores if isinstance(module, NewHead) else scores[:, answers]


@torch.inference_mode()
def predict_answers(module: nn.Module, texts: Encoded) -> torch.Tensor:
    """Return which of the nine answers each function gets, ``(texts,)``."""
    module.eval()
    parts = zip(texts.tokens.split(4 * BATCH), texts.last.split(4 * BATCH), strict=True)
    return torch.cat([scores_of_kinds(module, *each, texts.answers).argmax(1) for each in parts])


def error(module: nn.Module, texts: Encoded) -> float:
    """Return the share of functions that are answered wrongly."""
    return float((predict_answers(module, texts) != texts.kinds).float().mean())


# --- in context ------------------------------------------------------------------------------------------


def shortest_of_each(texts: Encoded, room: int, seed: int) -> list[tuple[list[int], int]]:
    """Return an example of each kind for a prompt, the shortest one, in a drawn order, as long as there is room.

    Parameters
    ----------
    texts : Encoded
        The functions to choose from.
    room : int
        Tokens that the examples may have together, answers included.
    seed : int
        Of the order.
    """
    chosen: list[tuple[list[int], int]] = []
    for kind in torch.randperm(len(texts.answers), generator=torch.Generator().manual_seed(seed)).tolist():
        places = (texts.kinds == kind).nonzero()[:, 0].tolist()
        if not places:
            continue
        place = min(places, key=lambda each: int(texts.last[each]))
        tokens = texts.tokens[place, : int(texts.last[place]) + 1].tolist()
        if len(tokens) + 1 <= room:
            chosen.append((tokens, int(texts.answers[kind])))
            room -= len(tokens) + 1
    return chosen


def ask_in_context(examples: Sequence[tuple[list[int], int]], texts: Encoded) -> Encoded:
    """Return questions with the same solved examples before each."""
    before = torch.tensor(prepend_examples(examples, []), dtype=torch.int64, device=texts.tokens.device)
    tokens = torch.cat([before.expand(len(texts), -1), texts.tokens], dim=1)
    return Encoded(tokens, texts.last + len(before), texts.kinds, texts.answers)
