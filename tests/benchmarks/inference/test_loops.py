from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

from gpuguide.benchmarks.inference import exact, loops, models
from gpuguide.inference import Engine, prepare
from gpuguide.models import shapes
from gpuguide.quantization import Int4, quantize_int4, quantize_int8

TINY = ["tiny-gpt2", "tiny-llama", "tiny-llama-untied"]


def written(writer: loops.PlainLoop | Engine, prompts: list[list[int]], count: int) -> torch.Tensor:
    """Return whole texts."""
    writer.start(prompts)
    for _ in range(count - 1):
        writer.step()
    return writer.texts[:, : len(prompts[0]) + count].clone()


@pytest.mark.parametrize("name", TINY)
def test_the_loop_writes_what_an_engine_writes_again_and_again(name: str) -> None:
    decoder = prepare(shapes.random_model(name))
    prompts = models.prompts_for({"model": name}, 3, 30)
    loop, engine = loops.PlainLoop(decoder, 3, 90), Engine(decoder, 3, 90)
    wanted = written(engine, prompts, 60)
    assert torch.equal(written(loop, prompts, 60), wanted)
    assert torch.equal(written(loop, prompts, 60), wanted)


def test_the_compiler_gets_the_whole_step_and_shapes_that_do_not_change(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    def compile(function: Callable[..., torch.Tensor], **options: Any) -> Callable[..., torch.Tensor]:
        asked.append(options)
        return function

    monkeypatch.setattr(torch, "compile", compile)
    decoder = prepare(shapes.random_model("tiny-llama"))
    prompts = models.prompts_for({"model": "tiny-llama"}, 2, 10)
    compiled = written(loops.PlainLoop(decoder, 2, 40, compiled=True), prompts, 20)
    assert torch.equal(compiled, written(loops.PlainLoop(decoder, 2, 40), prompts, 20))
    assert asked == [{"fullgraph": True, "dynamic": False}]


def test_each_layer_has_a_tensor_of_its_own() -> None:
    """The compiler copies a tensor that is changed in one layer and read in the next."""
    cache = loops.PlainLoop(prepare(shapes.random_model("tiny-llama")), 2, 100).cache
    memory = {tensor.untyped_storage().data_ptr() for tensor in (*cache.keys, *cache.values)}
    assert len(memory) == 4
    assert (cache.rows, cache.capacity) == (2, 128)


@pytest.mark.parametrize("name", TINY)
def test_pytorchs_product_with_eight_bits_writes_what_ours_writes(name: str) -> None:
    decoder = models.decoder(name, "int8", "cpu")
    loop = loops.PlainLoop(loops.with_torch_kernels(decoder), 2, 60)
    texts = written(loop, models.prompts_for({"model": name}, 2, 20), 40)
    exact.check_texts(decoder, texts, 20)


def test_what_is_handed_to_pytorchs_int8_product_are_the_same_numbers() -> None:
    torch.manual_seed(0)  # on a processor PyTorch's product crashes with 40 inputs
    weight, values = torch.randn(32, 64), torch.randn(2, 3, 64, dtype=torch.bfloat16)
    ours = quantize_int8(weight)
    bias = torch.randn(32, dtype=torch.bfloat16)
    found = functional.linear(values, loops.as_torch_keeps(ours), bias)
    wanted = functional.linear(values.float(), ours.dequantize(), bias.float())
    assert found.shape == (2, 3, 32)
    assert exact.relative_error(found, wanted) < 1e-2


def test_what_is_handed_to_pytorchs_int4_product_are_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch packs for a GPU there only, so what it is given is looked at: nibbles, scales, zeros and the group."""
    torch.manual_seed(0)
    ours: Int4 = quantize_int4(torch.randn(16, 512), 128)
    given: dict[str, torch.Tensor] = {}

    def pack(pairs: torch.Tensor, inner_k_tiles: int) -> torch.Tensor:
        given["values"] = torch.stack([pairs >> 4, pairs & 15], dim=-1).flatten(1)
        return torch.empty(2, 512 // (16 * inner_k_tiles), 32, inner_k_tiles // 2)

    def multiply(values: torch.Tensor, packed: torch.Tensor, group: int, scales: torch.Tensor) -> torch.Tensor:
        per_group = scales.repeat_interleave(group, dim=0).float()  # (inputs, outputs, 2)
        weight = (given["values"].T.float() - 8) * per_group[..., 0] + per_group[..., 1]
        return values.float() @ weight

    monkeypatch.setattr(torch, "_convert_weight_to_int4pack", pack)
    monkeypatch.setattr(torch, "_weight_int4pack_mm", multiply)
    values = torch.randn(3, 512, dtype=torch.bfloat16)
    found = functional.linear(values, loops.as_torch_keeps(ours))
    assert exact.relative_error(found, functional.linear(values.float(), ours.dequantize())) < 5e-3


@pytest.mark.gpu
def test_pytorchs_int4_product_on_a_gpu() -> None:
    torch.manual_seed(0)
    ours = quantize_int4(torch.randn(64, 512, device="cuda"), 128)
    values = torch.randn(3, 512, dtype=torch.bfloat16, device="cuda")
    found = functional.linear(values, loops.as_torch_keeps(ours))
    assert exact.relative_error(found, functional.linear(values.float(), ours.dequantize())) < 1e-2


@pytest.mark.gpu
@pytest.mark.parametrize("compiled", [False, True])
def test_the_captured_loop_writes_the_most_likely_text(compiled: bool) -> None:
    decoder = models.decoder("tiny-llama", "bf16", "cuda:0")
    prompts = models.prompts_for({"model": "tiny-llama"}, 2, 20)
    loop = loops.PlainLoop(decoder, 2, 60, compiled=compiled)
    for _ in range(2):
        exact.check_texts(decoder, written(loop, prompts, 40), 20)
