"""The training methods that are compared. All train the same numbers on the same batch, in bf16 matmuls, with AdamW.

What is compared is adapters and how a step is run, so all else is the best that there is for everybody: AdamW in one
kernel, attention without scores, our loss without logits for each method that has ``chunked-loss`` in its name, and for
each that has ``compile`` one whole graph of PyTorch's compiler, captured with the optimizer in one CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from gpuguide import lora
from gpuguide.benchmarks.inference import with_transformers
from gpuguide.benchmarks.lora import problem, reference
from gpuguide.benchmarks.lora.problem import Thin
from gpuguide.finetuning import peft_names
from gpuguide.lora.places import Places
from gpuguide.measure.benchmark import Keys
from gpuguide.training.loss import WithoutHead
from gpuguide.training.step import Loss, StepSettings

Gradients = Mapping[str, tuple[torch.Tensor, ...]]


@dataclass(frozen=True)
class LoraContender:
    """A model ready to be trained by one method."""

    model: nn.Module
    loss: Loss
    settings: StepSettings
    arrange: Callable[[Mapping[str, Thin]], Sequence[torch.Tensor]]
    """Map from adapters by name to values in the order of the trained parameters; without adapters, the model's"""
    name_gradients: Callable[[Sequence[torch.Tensor]], Gradients]
    """Conversely, for gradients"""
    expected: Callable[[Keys, str], reference.Expected] = reference.compute_adapter_gradients


Make = Callable[[Keys, str], LoraContender]
EAGER = StepSettings(backend=None, graphed=False)
COMPILED = StepSettings()
CAUSAL = "gpuguide-causal"


def ours(keys: Keys, device: str) -> LoraContender:
    """Return our adapters in bf16 with copies in fp32, the loss without logits, compiled and captured."""
    model = problem.model(keys, device)
    settings = lora.Settings(int(keys["rank"]), problem.alpha(keys))
    targets = problem.OURS[problem.kind(keys)][str(keys["targets"])]
    lora.add_adapters(model, targets, settings, dtype=torch.bfloat16)
    order = order_of_ours(model, keys)
    return LoraContender(model, WithoutHead(model).loss, StepSettings(), order.arrange, order.name_gradients)


def peft(
    keys: Keys, device: str, settings: StepSettings, *, autocast: bool = False, chunked: bool = False
) -> LoraContender:
    """Return PEFT's adapters.

    Parameters
    ----------
    keys, device
        The case, and where it is.
    settings : StepSettings
        How the step is taken.
    autocast : bool
        Adapters in fp32 and autocast to bf16, which is PEFT's default; else both in bf16, and no cast.
    chunked : bool
        Our loss without logits in place of that of ``transformers``.
    """
    from peft import LoraConfig, get_peft_model
    from transformers.loss.loss_utils import ForCausalLMLoss

    base = with_transformers.convert_model(problem.model(keys, device), device, attention_without_mask())
    base.loss_function = ForCausalLMLoss  # which GPT-2 takes too, with a warning that no compiler takes
    kind = problem.kind(keys)
    config = LoraConfig(
        r=int(keys["rank"]),
        lora_alpha=problem.alpha(keys),
        target_modules=problem.THEIRS[kind][str(keys["targets"])],
        fan_in_fan_out=kind == "gpt2",
        task_type="CAUSAL_LM",
    )
    model: Any = get_peft_model(base, config, autocast_adapter_dtype=autocast)
    loss = WithoutHead(model).loss if chunked else _loss_of_transformers(model, autocast)
    order = _OrderOfPeft(model)
    return LoraContender(model, loss, settings, order.arrange, order.name_gradients)


def peft_with_liger(keys: Keys, device: str) -> LoraContender:
    """Return PEFT's adapters in bf16 with the kernels of Liger: norms, gates, and its loss in chunks.

    Liger's rotations would replace those of all models of ``transformers`` in this process, and are left out.
    """
    from liger_kernel.transformers import apply_liger_kernel_to_llama
    from transformers.models.llama import modeling_llama

    trained = peft(keys, device, EAGER)
    model: Any = trained.model
    with _left_as_it_was(modeling_llama):
        apply_liger_kernel_to_llama(rope=False, model=model.get_base_model())
    return trained


def full(keys: Keys, device: str) -> LoraContender:
    """Return the training of all weights: bf16 with copies in fp32, the loss without logits, compiled and captured."""
    model = problem.model(keys, device)
    names = [name for name, each in model.named_parameters() if each.requires_grad]
    places = reference.find_end_matrices(keys)

    def name_gradients(gradients: Sequence[torch.Tensor]) -> Gradients:
        found = dict(zip(names, gradients, strict=True))
        return {name: (reference.rows_of(found[f"{layer}.weight"], place),) for name, (layer, place) in places.items()}

    def arrange(values: Mapping[str, Thin]) -> Sequence[torch.Tensor]:
        return [each.detach() for each in problem.model(keys, device).parameters()]

    return LoraContender(
        model, WithoutHead(model).loss, StepSettings(), arrange, name_gradients, reference.compute_weight_gradients
    )


@cache
def attention_without_mask() -> str:
    """Return what ``transformers`` calls an attention that needs no mask, after it was told of it.

    Its own, ``sdpa``, passes a mask as soon as it is compiled, with which PyTorch's fastest kernels do not work.
    """
    from transformers import AttentionInterface

    AttentionInterface.register(CAUSAL, _causal_attention)
    return CAUSAL


def _causal_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **others: object,
) -> tuple[torch.Tensor, None]:
    grouped = key.shape[1] < query.shape[1]
    mixed = functional.scaled_dot_product_attention(
        query, key, value, is_causal=True, scale=scaling, enable_gqa=grouped
    )
    return mixed.transpose(1, 2).contiguous(), None


def _loss_of_transformers(model: Any, autocast: bool) -> Loss:
    def loss(tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        with torch.autocast(tokens.device.type, torch.bfloat16, enabled=autocast):
            found: torch.Tensor = model(input_ids=tokens, labels=tokens, use_cache=False).loss
        return found

    return loss


@contextmanager
def _left_as_it_was(module: Any) -> Iterator[None]:
    """Undo what is assigned to names of a module meanwhile, which would reach contenders that do not ask for it."""
    before = dict(vars(module))
    try:
        yield
    finally:
        vars(module).update(before)


# --- which number is where -------------------------------------------------------------------------------


def order_of_ours(model: nn.Module, keys: Keys) -> _OrderOfOurs:
    """Return where the numbers of a case's adapters are in a model of ours that has them."""
    return _OrderOfOurs(model, peft_names.places(problem.build_meta_model(keys)))


class _OrderOfOurs:
    """Our parameters are A and B of a layer, with all parts of a matrix below each other."""

    def __init__(self, model: nn.Module, places: Places) -> None:
        self.layers = [
            ([place.name for place in places[path]], layer.adapter("default"))
            for path, layer in lora.find_adapted_layers(model).items()
        ]

    def arrange(self, values: Mapping[str, Thin]) -> Sequence[torch.Tensor]:
        """Return A and B of each layer."""
        return [torch.cat([values[name][half] for name in names]) for names, _ in self.layers for half in (0, 1)]

    def name_gradients(self, gradients: Sequence[torch.Tensor]) -> Gradients:
        """Return those of A and B by name."""
        found = {}
        for (names, adapter), down, up in zip(self.layers, gradients[::2], gradients[1::2], strict=True):
            rows = [adapter.outputs] if adapter.spans is None else [stop - start for start, stop in adapter.spans]
            for name, of_down, of_up in zip(names, down.chunk(len(names)), up.split(rows), strict=True):
                found[name] = (of_down, of_up)
        return found


class _OrderOfPeft:
    """PEFT's parameters are A and B of a matrix, with its name before them."""

    def __init__(self, model: nn.Module) -> None:
        trained = [name for name, each in model.named_parameters() if each.requires_grad]
        self.places = [self._place(name) for name in trained]

    @staticmethod
    def _place(name: str) -> tuple[str, int]:
        path, _, half = name.removesuffix(".default.weight").rpartition(".lora_")
        return path.removeprefix("base_model.model."), "AB".index(half)

    def arrange(self, values: Mapping[str, Thin]) -> Sequence[torch.Tensor]:
        """Return A or B for each parameter."""
        return [values[name][half] for name, half in self.places]

    def name_gradients(self, gradients: Sequence[torch.Tensor]) -> Gradients:
        """Return those of A and B by name."""
        found = dict(zip(self.places, gradients, strict=True))
        return {name: (found[name, 0], found[name, 1]) for name, _ in self.places}
