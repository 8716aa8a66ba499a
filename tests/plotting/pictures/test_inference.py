"""Drawings of writing: what they show is what the model of the library writes, and what the cost model counts."""

from __future__ import annotations

import torch
from figure_rows import rows_of

from gpuguide import models
from gpuguide.costs import presets
from gpuguide.costs.memory import Shape
from gpuguide.inference import cost
from gpuguide.measure import measured_ceilings
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


def test_passes_lie_under_the_roofline() -> None:
    gpu = measured_ceilings.load_reference()
    shape = presets.shape("llama-2-7b")
    parts = {("prefill", n): cost.prefill(shape, n) for n in pictures.PREFILLS}
    parts |= {("decode", n): cost.decode_step(shape, n, 64 + 127) for n in pictures.DECODES}
    work = {name: (cost.flops(each), cost.bytes_moved(each)) for name, each in parts.items()}
    for row in rows_of(pictures.passes_on_the_roofline(work)):
        slope = gpu.bandwidth["read"].value * float(row["FLOP_per_B"])
        assert float(row["FLOP_per_s"]) < min(slope, gpu.arithmetic["bf16"].value)
    for name, (flops, moved) in pictures.work_of_matrices().items():
        assert 0.5 < flops / work[name][0] < 1.05
        assert 0.4 < moved / work[name][1] < 1.1


def test_with_a_cache_each_token_passes_once() -> None:
    rows = rows_of(pictures.tokens_through_the_layers())
    passed = {
        cached: sum(int(row["tokens_passed"]) for row in rows if row["cache"] == cached) for cached in ("yes", "no")
    }
    tokens = pictures.PROMPT_TOKENS + pictures.NEW_TOKENS
    assert passed["yes"] == tokens - 1
    assert passed["no"] == sum(range(pictures.PROMPT_TOKENS, tokens))


def test_of_a_step_the_bound_is_a_part() -> None:
    shown = pictures.steps_and_their_bounds(lambda model, weights, batch: 1e-5)
    rows = rows_of(shown)
    assert all(float(row["bound_s"]) == 1e-5 < float(row["step_s"]) for row in rows)
    times = {(row["model"], row["weights"]): float(row["step_s"]) for row in rows}
    one, many = "Llama 2 7B shape", "7B shape, 32 sequences"
    assert times[one, "int4"] < times[one, "int8"] < times[one, "bf16"], "int8 and int4 shorten the step"
    assert times[many, "int8"] > times[many, "bf16"], "int8 does not"
