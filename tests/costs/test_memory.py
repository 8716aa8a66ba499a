"""The memory model against parameter counts, against what PyTorch allocates here, and against our records."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from alive import Ledger
from hypothesis import assume, given
from hypothesis import strategies as st
from torch.nn import functional

from gpuguide.benchmarks.training_memory import variants as training_memory
from gpuguide.benchmarks.training_memory.variants import VARIANTS, MemoryVariant, VariantTraining
from gpuguide.costs import memory, presets
from gpuguide.costs.memory import Setup, Shape
from gpuguide.errors import GpuguideError
from gpuguide.gradients import kept_bytes
from gpuguide.measure import measured_ceilings
from gpuguide.models.gpt2 import GPT2, GPT2Config

LLAMA = presets.get("llama-3.1-8b").shape
SMALL = {
    "mostly activations": {"layers": 3, "heads": 4, "hidden": 128, "vocab": 128, "batch": 2, "seq_len": 128},
    "mostly logits": {"layers": 3, "heads": 4, "hidden": 128, "vocab": 3000, "batch": 2, "seq_len": 128},
    "mostly weights": {"layers": 6, "heads": 2, "hidden": 128, "vocab": 200, "batch": 1, "seq_len": 16},
    "long sequences": {"layers": 2, "heads": 4, "hidden": 64, "vocab": 500, "batch": 2, "seq_len": 256},
}


def shape_of(keys: Mapping[str, Any]) -> Shape:
    """Return the shape of a model of the benchmark."""
    heads, hidden = int(keys["heads"]), int(keys["hidden"])
    return Shape(
        layers=int(keys["layers"]),
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        intermediate=4 * hidden,
        vocab=int(keys["vocab"]),
        context=training_memory.CONTEXT,
        gated=False,
        tied=True,
        learned_positions=True,
        bias="all",
        layer_norm=True,
    )


def run_of(variant: MemoryVariant, keys: Mapping[str, Any]) -> Setup:
    """Return the run that a contender of the benchmark stands for."""
    precision = "mixed" if variant.mixed else "bf16" if variant.weights == torch.bfloat16 else "fp32"
    return Setup(
        purpose="train" if variant.trains else "evaluate",
        precision=precision,
        batch=int(keys["batch"]),
        seq_len=int(keys["seq_len"]),
        checkpointing=variant.checkpointed,
        fused_attention=variant.fused_attention,
    )


# --- parameters ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", presets.load())
def test_published_models_have_as_many_parameters_as_published(name: str) -> None:
    preset = presets.get(name)
    assert preset.shape.parameters() == preset.parameters


def test_our_own_model_has_as_many_parameters_as_counted() -> None:
    keys = SMALL["mostly logits"]
    model = GPT2(GPT2Config(vocab_size=3000, layers=3, heads=4, hidden=128))
    assert shape_of(keys).parameters() == model.parameter_count()


# --- what PyTorch allocates on this machine --------------------------------------------------------------


@pytest.fixture
def autocast_as_on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the loss be computed as CUDA's autocast does: logarithms of probabilities in bf16, and the rest in fp32."""

    def cross_entropy(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if not torch.is_autocast_enabled("cpu"):
            return original(logits, targets)
        return functional.nll_loss(torch.log_softmax(logits, dim=-1).float(), targets)

    original = functional.cross_entropy
    monkeypatch.setattr(functional, "cross_entropy", cross_entropy)


@contextmanager
def after_a_step(variant: MemoryVariant, keys: Mapping[str, Any]) -> Iterator[tuple[VariantTraining, Ledger]]:
    """Take one step of training or use, and give the stage with a ledger that counts on from there."""
    torch.manual_seed(0)
    setup = VariantTraining(variant, keys, "cpu")
    with Ledger() as ledger:
        for tensor in (*setup.model.parameters(), setup.tokens, setup.targets):
            ledger.count(tensor.data)
        setup.step()
        ledger.peak = ledger.now
        yield setup, ledger


def peaks(variant: MemoryVariant, keys: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Yield the most bytes alive in the forward pass and, if there is one, in the backward pass of a second step."""
    with after_a_step(variant, keys) as (setup, ledger):
        result = setup.forward()
        yield "forward", ledger.peak
        if variant.trains:
            ledger.peak = ledger.now
            setup.backward(result)
            yield "backward", ledger.peak


@pytest.mark.parametrize("keys", SMALL.values(), ids=SMALL)
@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_the_peak_is_what_the_tensors_alive_add_up_to(
    variant: MemoryVariant, keys: Mapping[str, Any], autocast_as_on_cuda: None
) -> None:
    prediction = memory.predict(shape_of(keys), run_of(variant, keys))
    moments = {moment.name: moment.total - moment.parts["workspace"] for moment in prediction.moments}
    for part, peak in peaks(variant, keys):
        predicted = max(total for name, total in moments.items() if part in name or not variant.trains)
        if part == "backward" and variant.mixed:  # only CUDA adds the two gradients of a tied embedding in place
            predicted = max(predicted, moments["embedding, backward"] + 4 * keys["vocab"] * keys["hidden"])
        assert predicted == pytest.approx(peak, rel=0.035 if not variant.fused_attention else 0.016)


class GatedLayer(torch.nn.Module):
    """A layer as in Llama, but for LayerNorm, with grouped keys and values and no biases."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        queries, keys, inner = shape.queries, shape.keys, shape.intermediate
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(shape.hidden) for _ in range(2))
        self.query = torch.nn.Linear(shape.hidden, queries, bias=False)
        self.key_value = torch.nn.Linear(shape.hidden, 2 * keys, bias=False)
        self.out = torch.nn.Linear(queries, shape.hidden, bias=False)
        self.gate, self.up = (torch.nn.Linear(shape.hidden, inner, bias=False) for _ in range(2))
        self.down = torch.nn.Linear(inner, shape.hidden, bias=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Mix the positions, then transform each."""
        batch, seq, _ = hidden.shape
        normed = self.norms[0](hidden)
        query = self.query(normed).view(batch, seq, self.shape.heads, -1).transpose(1, 2)
        key, value = self.key_value(normed).view(batch, seq, 2, self.shape.kv_heads, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        hidden = hidden + self.out(mixed.transpose(1, 2).reshape(batch, seq, -1))
        normed = self.norms[1](hidden)
        return hidden + self.down(functional.silu(self.gate(normed)) * self.up(normed))


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (8, 2), (8, 1)])
def test_a_gated_layer_keeps_what_is_counted(heads: int, kv_heads: int) -> None:
    shape = Shape(1, 96, heads, kv_heads, 16, 224, 1000, 64, layer_norm=True)
    layer = GatedLayer(shape)
    hidden = torch.randn(3, 64, 96)
    assert layer(hidden).shape == hidden.shape
    run = Setup(precision="fp32", batch=3, seq_len=64)
    assert memory.activations_of_layer(shape, run) == pytest.approx(kept_by(layer, hidden), rel=1e-3)


@pytest.mark.parametrize("name", ["train-fp32", "train-bf16", "train-mixed"])
@pytest.mark.parametrize("keys", SMALL.values(), ids=SMALL)
def test_while_batches_are_added_up_all_gradients_are_held(
    name: str, keys: Mapping[str, Any], autocast_as_on_cuda: None
) -> None:
    """The second of two batches: its forward and backward pass beside the gradients of the first."""
    variant = VARIANTS[name]
    run = replace(run_of(variant, keys), accumulation=2)
    with after_a_step(variant, keys) as (setup, ledger):
        setup.backward(setup.forward())
        ledger.peak = ledger.now
        setup.backward(setup.forward())
    moments = memory.predict(shape_of(keys), run).moments[:-1]
    predicted = max(moment.total - moment.parts["workspace"] for moment in moments)
    assert predicted == pytest.approx(ledger.peak, rel=0.04)


class Adapted(torch.nn.Module):
    """A frozen product with a low-rank adapter beside it, or without one."""

    def __init__(self, inputs: int, outputs: int, rank: int) -> None:
        super().__init__()
        self.base = torch.nn.Linear(inputs, outputs, bias=False).requires_grad_(False)
        self.down = torch.nn.Linear(inputs, rank, bias=False) if rank else None
        self.up = torch.nn.Linear(rank, outputs, bias=False) if rank else None

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Multiply, and add what the adapter says, without a copy of the sum."""
        result: torch.Tensor = self.base(hidden)
        return result if self.down is None or self.up is None else result + self.up(self.down(hidden))


class AdaptedLayer(torch.nn.Module):
    """A layer as in Llama, but for LayerNorm, with adapters where a setup has them."""

    def __init__(self, shape: Shape, setup: Setup) -> None:
        super().__init__()
        self.shape = shape
        attention = setup.lora_rank if setup.adapted != "query-value" else 0
        others = setup.lora_rank if setup.adapted == "all" else 0
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(shape.hidden) for _ in range(2)).requires_grad_(False)
        self.query = Adapted(shape.hidden, shape.queries, setup.lora_rank)
        self.key = Adapted(shape.hidden, shape.keys, attention)
        self.value = Adapted(shape.hidden, shape.keys, setup.lora_rank)
        self.out = Adapted(shape.queries, shape.hidden, attention)
        self.gate, self.up = (Adapted(shape.hidden, shape.intermediate, others) for _ in range(2))
        self.down = Adapted(shape.intermediate, shape.hidden, others)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Mix the positions, then transform each."""
        batch, seq, _ = hidden.shape
        normed = self.norms[0](hidden)
        heads = [part(normed).view(batch, seq, -1, self.shape.head_dim).transpose(1, 2) for part in self.parts()]
        mixed = functional.scaled_dot_product_attention(*heads, is_causal=True, enable_gqa=True)
        hidden = hidden + self.out(mixed.transpose(1, 2).reshape(batch, seq, -1))
        normed = self.norms[1](hidden)
        return hidden + self.down(functional.silu(self.gate(normed)) * self.up(normed))

    def parts(self) -> tuple[Adapted, Adapted, Adapted]:
        """Return the products that make queries, keys and values."""
        return self.query, self.key, self.value


def kept_by(layer: torch.nn.Module, hidden: torch.Tensor) -> int:
    """Return the bytes that a layer keeps for its backward pass, its weights aside."""
    return kept_bytes(lambda: layer(hidden), layer.parameters())


@pytest.mark.parametrize("adapted", memory.ADAPTED)
def test_a_layer_with_adapters_keeps_what_is_counted(adapted: str) -> None:
    shape = Shape(1, 96, 8, 2, 16, 224, 1000, 64, layer_norm=True)
    setup = Setup(precision="bf16", batch=3, seq_len=64, lora_rank=4, adapted=adapted)
    layer = AdaptedLayer(shape, setup).bfloat16()
    trained = sum(weight.numel() for weight in layer.parameters() if weight.requires_grad)
    assert memory.values(shape, setup)["adapters"] == trained
    found = kept_by(layer, torch.randn(3, 64, 96, dtype=torch.bfloat16, requires_grad=True))
    assert memory.activations_of_layer(shape, setup) == pytest.approx(found, rel=0.01)


class Mixture(torch.nn.Module):
    """A mixture of experts after a norm: each token goes to the best of them, and what they say is weighted."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.used = shape.experts_used
        self.norm = torch.nn.LayerNorm(shape.hidden)
        self.router = torch.nn.Linear(shape.hidden, shape.experts, bias=False)
        sizes = [(shape.hidden, shape.intermediate)] * 2 + [(shape.intermediate, shape.hidden)]
        self.experts = torch.nn.ModuleList(
            torch.nn.ModuleList(torch.nn.Linear(*size, bias=False) for size in sizes) for _ in range(shape.experts)
        )

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Choose, gather, transform, weight and add up."""
        flat = hidden.flatten(0, 1)
        normed = self.norm(flat)
        weights, chosen = self.router(normed).softmax(-1, dtype=torch.float32).topk(self.used)
        for number, (gate, up, down) in enumerate(self.experts):
            rows, places = (chosen == number).nonzero(as_tuple=True)
            gathered = normed[rows]
            said = down(functional.silu(gate(gathered)) * up(gathered))
            flat = flat.index_add(0, rows, said * weights[rows, places, None])
        return flat.view_as(hidden)


def test_a_mixture_of_experts_keeps_what_is_counted() -> None:
    shape = Shape(1, 96, 8, 2, 16, 224, 1000, 64, layer_norm=True, experts=8, experts_used=2)
    dense = replace(shape, experts=1, experts_used=1)
    setup = Setup(precision="fp32", batch=3, seq_len=64)
    found = kept_by(Mixture(shape), torch.randn(3, 64, 96, requires_grad=True))
    attention = GatedLayer(dense)
    rest = memory.activations_of_layer(dense, setup) - kept_by(attention, torch.randn(3, 64, 96))
    assert abs(rest) < 1e-3 * found
    feed_forward = 4 * 192 * (96 + 2 + 96 + 4 * 224)  # norm, statistics, its output, four tensors of the inner width
    counted = memory.activations_of_layer(shape, setup) - memory.activations_of_layer(dense, setup) + feed_forward
    assert counted == pytest.approx(found, rel=0.03)


# --- the record ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["nvidia-h200", "nvidia-h100-80gb-hbm3"])
def test_the_24_measured_configurations_are_predicted(device: str) -> None:
    from gpuguide.measure import folders, records

    record = records.load(folders.published_folder() / device / "training-memory.json")
    errors = []
    for case in record.cases:
        assert case.status == "ok"
        predicted = memory.predict(shape_of(case.keys), run_of(VARIANTS[case.contender], case.keys)).total
        errors.append(abs(predicted / case.metrics["peak_memory"].summary.median - 1))
    assert len(errors) == 24
    assert statistics.median(errors) <= 0.03
    assert max(errors) <= 0.10


def test_each_part_of_a_step_is_predicted_not_only_the_highest() -> None:
    from gpuguide.measure import store

    for case in store.load_published("training-memory").cases:
        if not VARIANTS[case.contender].trains:
            continue
        moments = memory.predict(shape_of(case.keys), run_of(VARIANTS[case.contender], case.keys)).moments
        for part in ("forward", "backward", "optimizer"):
            predicted = max(moment.total for moment in moments if part in moment.name)
            assert predicted == pytest.approx(case.metrics[f"{part}_peak"].summary.median, rel=0.05)


# --- parallelism, a model in use -------------------------------------------------------------------------


def test_sharding_divides_what_each_stage_says() -> None:
    whole = memory.predict(LLAMA, Setup(data_parallel=8)).moments[-1].parts
    for setup, divided in enumerate([set(), {"optimizer"}, {"optimizer", "gradients"}]):
        parts = memory.predict(LLAMA, Setup(data_parallel=8, sharding=setup)).moments[-1].parts
        for name in ("weights", "gradients", "optimizer"):
            assert parts[name] == pytest.approx(whole[name] / (8 if name in divided else 1))
    parts = memory.predict(LLAMA, Setup(data_parallel=8, sharding=3)).moments[-1].parts
    states = LLAMA.parameters() * 16 / 8  # ZeRO, section 5: 16 bytes a parameter, all of them divided
    assert parts["weights"] + parts["gradients"] + parts["optimizer"] == pytest.approx(states)


def test_tensor_parallelism_divides_the_matrices_and_repeats_the_norms() -> None:
    one, eight = memory.local(LLAMA, 1), memory.local(LLAMA, 8)
    assert eight.matrices == one.matrices / 8
    assert eight.norm == one.norm
    assert 8 * eight.total - one.total == 7 * 65 * LLAMA.hidden  # two norms a layer and one at the end
    assert memory.local(LLAMA, 16).keys == LLAMA.head_dim  # eight heads of keys on sixteen GPUs


def test_the_cache_of_a_known_model() -> None:
    """Llama 3.1 8B takes 2 × 32 layers × 8 heads × 128 × 2 bytes for each position: 128 KiB."""
    run = Setup("generate", "bf16", seq_len=8192)
    assert memory.cache_bytes(LLAMA, run) == 8192 * 128 * 1024
    assert memory.cache_bytes(LLAMA, replace(run, cache="fp8", batch=2)) == 8192 * 128 * 1024
    assert memory.cache_bytes(LLAMA, replace(run, tensor_parallel=4)) == 8192 * 32 * 1024


def test_quantised_weights_leave_the_embedding_alone() -> None:
    bf16 = memory.weight_bytes(LLAMA, Setup("generate", "bf16"))
    int8 = memory.weight_bytes(LLAMA, Setup("generate", "int8"))
    assert bf16 == 2 * LLAMA.parameters()
    matrices = 32 * (4096 * (2 * 4096 + 2 * 1024) + 3 * 4096 * 14336)
    assert bf16 - int8 == matrices
    int4 = memory.weight_bytes(LLAMA, Setup("generate", "int4"))
    assert int8 - int4 == pytest.approx(matrices * (0.5 - 2 / 128))


# --- adapters, optimizers, experts, prompts --------------------------------------------------------------


def test_adapters_have_gradients_and_states_and_the_weights_do_not() -> None:
    setup = Setup(precision="bf16", lora_rank=16, adapted="all")
    layer = 16 * (4096 * 2 + 4096 + 1024 + 4096 + 1024 + 4096 * 2 + 3 * (4096 + 14336))
    parts = memory.predict(LLAMA, setup).moments[-1].parts
    assert parts["gradients"] == 2 * 32 * layer
    assert parts["optimizer"] == 2 * 2 * 32 * layer
    assert parts["weights"] == 2 * (LLAMA.parameters() + 32 * layer)
    matrices = 32 * (4096 * (2 * 4096 + 2 * 1024) + 3 * 4096 * 14336)
    nf4 = memory.predict(LLAMA, replace(setup, base="nf4")).moments[-1].parts["weights"]
    assert parts["weights"] - nf4 == pytest.approx(matrices * (2 - 0.5 - 1 / 64 - 4 / 64 / 256))


def test_states_in_fewer_bits() -> None:
    states = {
        name: memory.predict(LLAMA, Setup(precision="bf16", optimizer=name)).moments[-1].parts["optimizer"]
        for name in memory.OPTIMIZERS
    }
    count = LLAMA.parameters()
    assert states["adamw"] == states["adamw-fused"] == 4 * count
    assert states["adamw-8bit"] == pytest.approx(2 * count * (1 + 4 / 256))
    assert states["adamw-4bit"] == pytest.approx(2 * count * (1 / 2 + 4 / 128))
    assert states["sgd"] == 0


def test_chunks_bound_what_is_in_the_layers_and_leave_the_cache_alone() -> None:
    """32 prompts of 8192 tokens at once: 32 · 8192 · (3 · 4096 + 3 · 14336) numbers of 2 bytes in the widest layer."""
    whole = Setup("generate", "bf16", batch=32, seq_len=8192)
    chunked = replace(whole, prefill="chunked", chunk=2048)
    wide = {name: memory.predict(LLAMA, setup).moments[0].parts for name, setup in (("all", whole), ("2k", chunked))}
    assert wide["all"]["temporary"] == 32 * 8192 * (3 * 4096 + 3 * 14336) * 2
    assert wide["2k"]["temporary"] == 2048 * (3 * 4096 + 3 * 14336) * 2
    assert wide["all"]["cache"] == wide["2k"]["cache"] == 32 * 8192 * 128 * 1024
    longer = replace(chunked, chunk=10**9)
    assert memory.predict(LLAMA, longer).total == memory.predict(LLAMA, whole).total


def test_all_experts_are_in_memory_and_a_few_in_use() -> None:
    mixtral = presets.get("mixtral-8x7b").shape
    assert memory.weight_bytes(mixtral, Setup("generate", "bf16")) == 2 * 46_702_792_704
    dense = replace(mixtral, experts=1, experts_used=1)
    for setup in (Setup("generate", "bf16"), Setup(precision="bf16")):
        temporary = [memory.predict(shape, setup).moments[0].parts["temporary"] for shape in (dense, mixtral)]
        assert temporary[1] < 3 * temporary[0] or setup.purpose == "train"


def test_what_the_printed_capacity_got_wrong() -> None:
    """8B in 16 bits, checkpointed, 2k: 8 bytes a weight, with AdamW's copy 10, of the 79.6 GiB that an H100 has."""
    h100 = measured_ceilings.load("h100-sxm").capacity
    setup = Setup(precision="bf16", seq_len=2048, checkpointing=True)
    total = memory.predict(LLAMA, setup).total
    assert total == pytest.approx(10 * LLAMA.parameters(), rel=0.01)
    assert memory.judge(total, 80e9) == "too large"
    assert memory.judge(total, h100) == "tight"
    assert memory.judge(memory.predict(LLAMA, replace(setup, optimizer="adamw-fused")).total, h100) == "fits"


# --- bad input, remedies ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("layers", 0, "layers is 0; it must be a whole number from 1 to 1000000."),
        ("hidden", -1, "hidden is -1; it must be a whole number from 1 to 1000000000."),
        ("heads", 1.5, "heads is 1.5; it must be a whole number from 1 to 1000000."),
        ("vocab", 10**10, "vocab is 10000000000; it must be a whole number from 1 to 1000000000."),
        ("kv_heads", 5, "kv_heads is 5; it must divide the 32 heads."),
        ("bias", "some", "bias is some; choose one of none, qkv, all."),
        ("norms", 3, "norms is 3; choose one of 2, 4."),
    ],
)
def test_a_shape_that_makes_no_sense_is_refused(field: str, value: Any, says: str) -> None:
    with pytest.raises(GpuguideError) as error:
        replace(LLAMA, **{field: value})
    assert str(error.value) == says


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("purpose", "dream", "purpose is dream; choose one of train, generate, evaluate."),
        ("precision", "int4", "precision is int4; choose one of mixed, bf16, fp32."),
        ("batch", 0, "batch is 0; it must be a whole number from 1 to 1000000."),
        ("seq_len", 200000, "seq_len is 200000; the model knows 131072 positions."),
        ("tensor_parallel", 3, "tensor_parallel is 3; it must divide the 32 attention heads."),
        ("sharding", 4, "sharding is 4; choose one of 0, 1, 2, 3."),
        ("optimizer", "lion", f"optimizer is lion; choose one of {', '.join(memory.OPTIMIZERS)}."),
        ("accumulation", 0, "accumulation is 0; it must be a whole number from 1 to 1000000."),
        ("lora_rank", -1, "lora_rank is -1; it must be a whole number from 0 to 1000000."),
        ("base", "fp4", "base is fp4; choose one of bf16, int8, nf4."),
        ("adapted", "some", "adapted is some; choose one of query-value, attention, all."),
        ("prefill", "late", "prefill is late; choose one of whole, chunked."),
        ("chunk", 0, "chunk is 0; it must be a whole number from 1 to 1000000000."),
    ],
)
def test_a_run_that_makes_no_sense_is_refused(field: str, value: Any, says: str) -> None:
    with pytest.raises(GpuguideError) as error:
        memory.predict(LLAMA, replace(Setup(), **{field: value}))
    assert str(error.value) == says


runs = st.builds(
    Setup,
    purpose=st.sampled_from(memory.PURPOSES),
    precision=st.sampled_from([*memory.TRAINING_PRECISIONS, *memory.WEIGHT_FORMATS]),
    batch=st.integers(1, 512),
    seq_len=st.integers(1, 131072),
    optimizer=st.sampled_from(memory.OPTIMIZERS),
    checkpointing=st.booleans(),
    fused_attention=st.booleans(),
    cache=st.sampled_from(memory.CACHE_FORMATS),
    tensor_parallel=st.sampled_from([1, 2, 4, 8]),
    data_parallel=st.sampled_from([1, 2, 8, 64]),
    sharding=st.integers(0, 3),
    accumulation=st.sampled_from([1, 4]),
    lora_rank=st.sampled_from([0, 0, 8, 256]),
    adapted=st.sampled_from(memory.ADAPTED),
    base=st.sampled_from(memory.BASES),
    prefill=st.sampled_from(memory.PREFILLS),
    chunk=st.sampled_from([1, 2048]),
    checkpoint_every=st.sampled_from([1, 2]),
    selective=st.booleans(),
    offloaded=st.booleans(),
    loss=st.sampled_from(memory.LOSSES),
    optimizer_in_backward=st.booleans(),
    activation=st.sampled_from(memory.ACTIVATIONS),
)


@given(run=runs, preset=st.sampled_from(list(presets.load().values())))
def test_more_sequences_never_take_less_and_every_part_is_counted(run: Setup, preset: presets.Preset) -> None:
    assume(not memory.setup_faults(preset.shape, run))
    prediction = memory.predict(preset.shape, run)
    for moment in prediction.moments:
        assert set(moment.parts) == set(memory.PARTS)
        assert all(0 <= size < math.inf for size in moment.parts.values())
    assert memory.predict(preset.shape, replace(run, batch=run.batch + 1)).total >= prediction.total
    for remedy in memory.remedies(preset.shape, run):
        assert memory.predict(preset.shape, remedy.setup).total == remedy.total < prediction.total


@given(run=runs, available=st.floats(1e9, 1e12))
def test_the_largest_batch_fits_and_the_next_does_not(run: Setup, available: float) -> None:
    assume(not memory.setup_faults(LLAMA, run))
    batch = memory.largest_batch(LLAMA, run, available)
    if batch:
        assert memory.predict(LLAMA, replace(run, batch=batch)).total <= available
    if batch < 10**6:
        assert memory.predict(LLAMA, replace(run, batch=batch + 1)).total > available


def test_the_remedies_of_a_model_that_does_not_fit() -> None:
    changes = [remedy.change for remedy in memory.remedies(LLAMA, Setup(batch=8, seq_len=4096))]
    assert "use activation checkpointing" in changes
    assert "shard with ZeRO-3 (FSDP) over 8 GPUs" in changes
    assert "halve the batch to 4" in changes
    assert not any("fp8" in change for change in changes)
    in_use = [remedy.change for remedy in memory.remedies(LLAMA, Setup("generate", "bf16"))]
    assert in_use[:2] == ["halve the sequences to 512 tokens", "store the weights as int8"]
