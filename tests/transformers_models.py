"""Models of transformers with the shape of ours, to compare with."""

from __future__ import annotations

import transformers

from gpuguide.models.llama import LlamaConfig


def theirs_of(config: LlamaConfig) -> transformers.LlamaForCausalLM:
    """Return a Llama of transformers in ``eval`` mode, with weights of its own."""
    rope: dict[str, object] = {"rope_type": "default", "rope_theta": config.rope_base}
    if config.rope_scaling is not None:
        rope |= {
            "rope_type": "llama3",
            "factor": config.rope_scaling.factor,
            "low_freq_factor": config.rope_scaling.low_frequency_factor,
            "high_freq_factor": config.rope_scaling.high_frequency_factor,
            "original_max_position_embeddings": config.rope_scaling.original_context,
        }
    settings = transformers.LlamaConfig(
        vocab_size=config.vocab_size,
        max_position_embeddings=config.context,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        num_key_value_heads=config.kv_heads,
        hidden_size=config.hidden,
        intermediate_size=config.inner,
        rms_norm_eps=config.norm_epsilon,
        tie_word_embeddings=config.tied,
        rope_parameters=rope,
        bos_token_id=1,
        eos_token_id=2,
    )
    return transformers.LlamaForCausalLM(settings).eval()
