"""The same models in ``transformers``: same shapes, same weights in the same memory where the layout is theirs too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gpuguide.benchmarks.inference import models
from gpuguide.models import gpt2_checkpoint, llama_checkpoint
from gpuguide.models.gpt2 import GPT2
from gpuguide.models.llama import Llama

TOKENS_WITHOUT_MEANING: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}
"""No token ends a text, so that all are as long as asked for and nobody looks for an end"""


def model(name: str, device: str, attention: str = "sdpa") -> Any:
    """Return a model of ``transformers`` with the weights of :func:`gpuguide.benchmarks.inference.models.model`."""
    return convert_model(models.model(name, device), device, attention)


def convert_model(ours: GPT2 | Llama, device: str, attention: str = "sdpa") -> Any:
    """Return a model of ours as one of ``transformers``.

    Parameters
    ----------
    ours : GPT2 or Llama
        With its weights on the device.
    device : str
        Where they are.
    attention : str
        Their ``attn_implementation``.
    """
    with torch.device("meta"):
        theirs = _gpt2(ours, attention) if isinstance(ours, GPT2) else _llama(ours, attention)
    weights = gpt2_checkpoint.to_transformers(ours) if isinstance(ours, GPT2) else llama_checkpoint.their_places(ours)
    theirs.load_state_dict(weights, strict=False, assign=True)
    theirs.tie_weights()
    if isinstance(ours, Llama):  # its frequencies are no weights, and are computed where the model is made
        theirs.model.rotary_emb = type(theirs.model.rotary_emb)(theirs.config).to(device)
    left = [where for where, tensor in (*theirs.named_parameters(), *theirs.named_buffers()) if tensor.is_meta]
    assert not left, f"{', '.join(left)} got no weights"
    return theirs.eval()


def generator(
    model: Any, prompts: list[list[int]], new_tokens: int, device: str, *, static: bool
) -> Callable[[], torch.Tensor]:
    """Return a call of ``generate``, greedy.

    Parameters
    ----------
    model
        Of ``transformers``.
    prompts : list of list of int
        Of one length.
    new_tokens : int
        How many each text gets.
    device : str
        Where the model is.
    static : bool
        Whether the cache is a static one, with which ``generate`` compiles the steps on a GPU; else it grows.
    """
    from transformers import GenerationConfig

    settings = GenerationConfig(
        max_new_tokens=new_tokens,
        min_new_tokens=new_tokens,
        do_sample=False,
        cache_implementation="static" if static else None,
        **TOKENS_WITHOUT_MEANING,
    )
    tokens = torch.tensor(prompts).to(device)
    mask = torch.ones_like(tokens)

    def generate() -> torch.Tensor:
        texts: torch.Tensor = model.generate(tokens, attention_mask=mask, generation_config=settings)
        return texts

    return generate


def quantise_model(model: Any, weights: str) -> Any:
    """Quantise the linear layers of a model by torchao, in place, the head aside, and return it.

    Int4 weights are laid out for ``torch._weight_int4pack_mm``, torchao's own layouts needing further libraries.
    """
    from torchao.quantization import Int4WeightOnlyConfig, Int8WeightOnlyConfig, quantize_

    four = Int4WeightOnlyConfig(group_size=128, int4_packing_format="tile_packed_to_4d", set_inductor_config=False)
    chosen = {"int8": Int8WeightOnlyConfig(set_inductor_config=False), "int4": four}[weights]
    head = model.get_output_embeddings()
    quantize_(model, chosen, lambda module, _: isinstance(module, torch.nn.Linear) and module is not head)
    return model


def use_recommended_settings(generate: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
    """Return a call that compiles with the settings that torchao recommends, and leaves those of others as they are."""
    from torch._inductor import config

    recommended = {
        "coordinate_descent_tuning": True,
        "coordinate_descent_check_all_directions": True,
        "force_fuse_int_mm_with_mul": True,
    }

    def call() -> torch.Tensor:
        with config.patch(recommended):
            return generate()

    return call


def _gpt2(ours: GPT2, attention: str) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {theirs: getattr(ours.config, name) for name, theirs in gpt2_checkpoint.SIZES.items()}
    config = GPT2Config(**sizes, layer_norm_epsilon=ours.config.norm_epsilon, **TOKENS_WITHOUT_MEANING)
    return GPT2LMHeadModel._from_config(config, attn_implementation=attention)


def _llama(ours: Llama, attention: str) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    config, scaling = ours.config, ours.config.rope_scaling
    sizes = {theirs: getattr(config, name) for name, theirs in llama_checkpoint.SIZES.items()}
    rotations: dict[str, Any] = {"rope_type": "default", "rope_theta": config.rope_base}
    if scaling is not None:
        factors = {theirs: getattr(scaling, name) for name, theirs in llama_checkpoint.ROPE_SCALING.items()}
        rotations |= {"rope_type": "llama3", llama_checkpoint.ORIGINAL: scaling.original_context, **factors}
    return LlamaForCausalLM._from_config(
        LlamaConfig(
            **sizes,
            num_key_value_heads=config.kv_heads,
            rms_norm_eps=config.norm_epsilon,
            rope_parameters=rotations,
            tie_word_embeddings=config.tied,
            **TOKENS_WITHOUT_MEANING,
        ),
        attn_implementation=attention,
    )
