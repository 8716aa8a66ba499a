"""Rows of the ledger that a library can show as well: PyTorch and transformers give what the row computes."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from gpuguide import claims
from gpuguide.attention import cost as attention_cost
from gpuguide.costs import memory, presets

needs_transformers = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="transformers is not installed"
)
VALUES = {
    row.id: row.value if isinstance(row.value, tuple) else (row.value,)
    for row in claims.load()
    if row.kind == "computed"
}


def test_what_a_frozen_layer_saves_of_the_operations() -> None:
    """A row on LoRA says that 4 of 6 FLOPs per parameter and token remain."""
    tokens, layer = torch.randn(32, 64, requires_grad=True), nn.Linear(64, 128, bias=False)
    counted = []
    for trained in (True, False):
        layer.weight.requires_grad_(trained)
        with FlopCounterMode(display=False) as counter:
            layer(tokens).sum().backward()
        counted.append(counter.get_total_flops() / (32 * layer.weight.numel()))
    assert counted == [6, 4]
    (row,) = (row for row in claims.load() if row.id == "lora-speed-2-3x")
    numbers = re.findall(r"\d+(?:\.\d+)?", claims.right(row))
    assert numbers[:3] == ["6", "4", "1.50"]


def moved(gradients: list[float], *, steps_before: int = 0) -> float:
    """Return by how many learning rates Adam's last step moves a weight with these gradients."""
    weight = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    adam = torch.optim.Adam([weight], lr=1.0)
    before = 0.0
    for gradient in gradients:
        weight.grad = torch.full_like(weight, gradient)
        before = weight.item()
        adam.step()
        adam.state[weight]["step"] += steps_before
    return abs(weight.item() - before)


def test_how_far_adam_moves_a_weight() -> None:
    assert moved([1e-4] * 10) == pytest.approx(1, rel=1e-3)
    assert moved([1e-12] * 10) < 1e-3, "below epsilon a gradient's size counts"
    assert moved([0, 1], steps_before=50_000) == pytest.approx(VALUES["lr-weight-change-bound"][0], rel=1e-6)


def test_adam_in_fp16_divides_zero_by_zero() -> None:
    epsilon = torch.tensor(1e-8, dtype=torch.float16)
    assert (epsilon.item(),) == VALUES["zero-grad-causes-nan"]
    zero = torch.zeros(1, dtype=torch.float16)
    assert (zero / (zero.sqrt() + epsilon)).isnan().all()


def test_what_eval_and_inference_mode_switch() -> None:
    """A row on inference says that one stops dropout, the other autograd, and neither both."""
    model, numbers = nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.5)), torch.ones(8, 64)
    model.eval()
    assert (model(numbers) != 0).all()
    assert model(numbers).requires_grad
    model.train()
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            found = model(numbers)
        assert not found.requires_grad
        assert (found == 0).any()


@needs_transformers
def test_what_a_repetition_penalty_does_to_the_odds() -> None:
    from transformers import RepetitionPenaltyLogitsProcessor

    used = torch.tensor([[0, 1, 2]])
    logits = torch.tensor([[2.0, 20.0, -2.0]], dtype=torch.float64)
    penalised = RepetitionPenaltyLogitsProcessor(1.2)(used, logits.clone())
    odds = (logits - penalised).exp()[0].tolist()
    assert odds[:2] == pytest.approx(VALUES["sampling-repetition-penalty"][:2], rel=1e-5)
    assert penalised[0, 2].item() == pytest.approx(-2 * 1.2)


@needs_transformers
def test_how_many_tokens_top_p_keeps() -> None:
    from transformers import TopKLogitsWarper, TopPLogitsWarper

    logits = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log()
    ids = torch.zeros(1, 1, dtype=torch.long)
    kept = TopPLogitsWarper(0.75)(ids, logits).isfinite().sum().item()
    first_two = TopKLogitsWarper(2)(ids, logits)
    kept_of_two = TopPLogitsWarper(0.75)(ids, first_two)
    assert (kept, kept_of_two.isfinite().sum().item()) == (3, 2)
    assert (kept, first_two.softmax(-1)[0, 0].item()) == pytest.approx(
        (VALUES["sampling-topk-topp"][0], VALUES["sampling-topk-topp"][3]), rel=1e-5
    )


@needs_transformers
def test_gradients_and_lora_of_gpt2() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel
    from transformers.pytorch_utils import Conv1D

    with torch.device("meta"):
        model = GPT2LMHeadModel(GPT2Config())
    gradients = sum(weight.numel() * 4 for weight in model.parameters())
    assert gradients / 1e6 == pytest.approx(VALUES["effective-batch-table"][1])
    layers = {name: module for name, module in model.named_modules() if isinstance(module, Conv1D)}
    trained = sum(
        16 * sum(module.weight.shape) for name, module in layers.items() if name.endswith(("c_attn", "c_proj"))
    )
    assert trained == VALUES["lora-gpt2-129pct"][0]
    (head,) = (module for module in model.modules() if isinstance(module, nn.Linear))
    assert 16 * (head.in_features + head.out_features) == VALUES["lora-type-detection"][0]


def test_cache_and_weights_of_llama_2_70b() -> None:
    llama = presets.get("llama-2-70b")
    setup = memory.Setup(purpose="generate", precision="bf16", batch=1, seq_len=4096, cache="bf16")
    assert memory.cache_bytes(llama.shape, setup) == VALUES["kv-cache-tens-gb"][1]
    assert 2 * llama.parameters / 1e9 == pytest.approx(VALUES["70b-fp16-140gb"][1], rel=1e-5)


@pytest.mark.parametrize("nodes", [2, 4, 8])
def test_a_ring_all_reduce_sends_what_the_row_says(nodes: int) -> None:
    """Each node passes one part of the array on in each of 2 (N - 1) steps, and all end with the sum."""
    arrays = np.random.default_rng(0).standard_normal((nodes, nodes, 3))
    total, held, steps = arrays.sum(axis=0), arrays.copy(), 0
    for phase, add in ((0, True), (1, False)):
        for step in range(nodes - 1):
            parts = [(node - step + phase) % nodes for node in range(nodes)]
            sent = [held[node, part].copy() for node, part in enumerate(parts)]
            for node, part in enumerate(parts):
                receiver = (node + 1) % nodes
                held[receiver, part] = sent[node] + (held[receiver, part] if add else 0)
            steps += 1
    assert np.allclose(held, total)
    assert steps / nodes == dict(zip((2, 4, 8, 64, 512), VALUES["ring-volume"], strict=True))[nodes]
    assert nodes != 8 or (steps, steps / nodes) == VALUES["ring-phases"]


class CountedOperations(TorchDispatchMode):
    """Counts the operations that reach a device, each of which is a kernel in eager mode."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def test_layer_normalisation_written_out_is_eight_operations_and_one_as_a_layer() -> None:
    layer, inputs = nn.LayerNorm(768), torch.randn(4, 768)
    with torch.no_grad(), CountedOperations() as written_out:
        mean, variance = inputs.mean(-1, keepdim=True), inputs.var(-1, keepdim=True, correction=0)
        normalised = (inputs - mean) / torch.sqrt(variance + layer.eps) * layer.weight + layer.bias
    with torch.no_grad(), CountedOperations() as as_a_layer:
        expected = layer(inputs)
    torch.testing.assert_close(normalised, expected)
    layers = VALUES["layernorm-eager-baseline"][0]
    assert (written_out.count * layers, as_a_layer.count) == (VALUES["layernorm-eager-baseline"][1], 1)


@needs_transformers
def test_gpt2_has_as_many_layer_normalisations_as_the_row_says() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    with torch.device("meta"):
        model = GPT2LMHeadModel(GPT2Config())
    assert sum(isinstance(layer, nn.LayerNorm) for layer in model.modules()) == VALUES["layernorm-eager-baseline"][0]


def test_the_variance_that_divides_by_one_less() -> None:
    inputs = torch.randn(768, dtype=torch.float64)
    ratio = torch.sqrt(inputs.var(correction=0) / inputs.var())
    assert ratio.item() == pytest.approx(VALUES["layernorm-var-unbiased"][0], rel=1e-8)


def test_the_loss_of_logits_and_what_nll_loss_makes_of_them() -> None:
    logits, target = torch.tensor([[2.0, 1.0, 0.0]], dtype=torch.float64), torch.tensor([0])
    (value,) = VALUES["ce-logsoftmax-nll"]
    assert nn.CrossEntropyLoss()(logits, target).item() == pytest.approx(value, rel=1e-5)
    assert nn.NLLLoss()(logits.log_softmax(-1), target).item() == pytest.approx(value, rel=1e-5)
    assert nn.NLLLoss()(logits, target).item() == -2


def test_token_ids_as_int16() -> None:
    ids = np.arange(50257).astype(np.int16)
    negative, last, share = VALUES["int16-token-overflow"]
    assert ((ids < 0).sum(), ids[-1]) == (negative, last)
    assert (ids < 0).mean() == pytest.approx(share, rel=1e-5)


def test_how_many_numbers_a_vector_register_holds() -> None:
    headers = Path(torch.__file__).parent / "include/ATen/cpu/vec"
    names = ("vec128/vec128_float_neon.h", "vec256/vec256_float.h", "vec512/vec512_float.h")
    if not all((headers / name).exists() for name in names):
        pytest.skip("this build of PyTorch has no headers of its vectors")
    sizes = [re.search(r"size\(\) \{\s*return (\d+);", (headers / name).read_text(encoding="utf-8")) for name in names]
    assert [float(size[1]) for size in sizes if size] == list(VALUES["simd-4-per-clock"])


def test_compilers_chunk_the_loss_only_when_asked() -> None:
    """A row says that a compiled loss keeps the logits by default, and what can be asked for."""
    from torch._inductor import config

    if not hasattr(config, "auto_chunker") or not hasattr(nn.functional, "linear_cross_entropy"):
        pytest.skip("the row is about PyTorch 2.13")
    assert config.auto_chunker.enable is False


@needs_transformers
def test_labels_are_shifted_inside_and_view_wants_contiguous_logits() -> None:
    from transformers.loss.loss_utils import ForCausalLMLoss

    logits, tokens = torch.randn(2, 5, 7), torch.randint(7, (2, 5))
    shifted = nn.functional.cross_entropy(logits[:, :-1].reshape(-1, 7), tokens[:, 1:].reshape(-1))
    assert ForCausalLMLoss(logits, tokens, vocab_size=7).item() == pytest.approx(shifted.item(), rel=1e-6)
    with pytest.raises(RuntimeError, match="view size is not compatible"):
        logits[:, :-1].view(-1, 7)


def test_multinomial_refuses_three_dimensions() -> None:
    row = next(row for row in claims.load() if row.id == "logits-multinomial-3d")
    with pytest.raises(RuntimeError, match="prob_dist must be 1 or 2 dim") as refused:
        torch.multinomial(torch.ones(2, 3, 4), 1)
    assert str(refused.value).rstrip(".") in row.right


def test_the_scaler_refuses_gradients_in_fp16() -> None:
    weight = nn.Parameter(torch.ones(2, dtype=torch.float16))
    scaler, descent = torch.amp.GradScaler("cpu"), torch.optim.SGD([weight], lr=1.0)
    scaler.scale(weight.float().sum()).backward()
    with pytest.raises(ValueError, match="unscale FP16 gradients"):
        scaler.unscale_(descent)


def test_cosine_decay_of_pytorch() -> None:
    """It follows the row's formula, and climbs again where more steps are taken than it was made for."""
    descent = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=3e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(descent, T_max=8, eta_min=1e-5)
    rates = []
    for _ in range(17):
        rates.append(schedule.get_last_lr()[0])
        descent.step()
        schedule.step()
    assert [rates[0], rates[4], rates[8]] == pytest.approx(VALUES["cosine-formula"])
    assert [rates[8], rates[12], rates[16]] == pytest.approx(VALUES["cosine-wraps-after-total"])


def test_a_causal_mask_is_a_fifth_kernel_and_two_more_moves() -> None:
    plain, causal = (
        attention_cost.naive_forward(attention_cost.problem(1, 1, 512, 64, causal=it)) for it in (False, True)
    )
    assert (len(plain), len(causal)) == (4, 5)
    assert attention_cost.score_passes(plain) == VALUES["attention-4-kernels"][0]
    assert attention_cost.score_passes(causal) == VALUES["attention-4-kernels"][0] + 2
