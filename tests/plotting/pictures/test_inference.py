"""Drawings of writing: what they show is what the model of the library writes, and what the cost model counts."""

from __future__ import annotations

import torch
from figure_rows import rows_of

from gpuguide import models
from gpuguide.costs.memory import Shape
from gpuguide.inference import cost
from gpuguide.models import generate
from gpuguide.plotting.pictures import inference as pictures


def test_the_tokens_are_what_the_packaged_model_reads_and_writes() -> None:
    main = models.load("main")
    prompt = main.tokenizer.encode("".join(pictures.PROMPT))
    assert tuple(main.tokenizer.decode([token]) for token in prompt) == pictures.PROMPT
    text = generate(main.model, prompt, len(pictures.WRITTEN))
    assert main.tokenizer.decode(text[-len(pictures.WRITTEN) :]) == "".join(pictures.WRITTEN)


def test_the_bytes_are_those_of_the_cost_model() -> None:
    config = models.load("main").config
    shape = Shape(
        layers=config.layers, hidden=config.hidden, heads=config.heads, kv_heads=config.heads,
        head_dim=config.head_dim, intermediate=4 * config.hidden, vocab=config.vocab_size, context=config.context,
        gated=False, tied=True, learned_positions=True, bias="all", layer_norm=True,
    )  # fmt: skip
    embedded = 2 * config.hidden
    assert cost.weight_bytes_read(shape) - embedded == pictures.READ
    assert cost.cache_bytes_per_token(shape) == pictures.CACHED
    rows = rows_of(pictures.prefill_and_decode())
    assert [int(row["cached_tokens"]) for row in rows] == [5, 6, 7, 8]
    assert [int(row["cache_B"]) for row in rows] == [count * pictures.CACHED for count in (5, 6, 7, 8)]


def test_each_way_of_launching_is_faster_than_the_one_before() -> None:
    times = [float(row["time_of_a_token_s"]) for row in rows_of(pictures.kernels_of_a_step())]
    assert times == sorted(times, reverse=True)
    assert times[0] > 10 * times[-1]


def test_the_example_is_greedy() -> None:
    main = models.load("main")
    tokens = main.tokenizer.encode("".join((*pictures.PROMPT, *pictures.WRITTEN[:-1])))
    with torch.inference_mode():
        best = main.model(torch.tensor([tokens]))[0, len(pictures.PROMPT) - 1 :].argmax(-1)
    assert tuple(main.tokenizer.decode([int(token)]) for token in best) == pictures.WRITTEN
