"""The device memory that a language model takes, in training and in use, predicted from its shape.

A step is followed through its moments: the loss, the backward pass of the last and of the first layer, the step of
the optimizer. At each of them other tensors are alive; the memory that a step needs is what its highest moment
takes. All counts are those of one GPU.

What is assumed of the software:

* A decoder of the usual kind: two norms a layer, attention, a feed-forward part; dropout off.
* PyTorch's own operations, one after another, nothing compiled. A linear layer keeps its input for the backward
  pass, a norm its input and one or two statistics a token, an activation function its input, fused attention its
  queries, keys, values, output and one number a token and head. Norms are one operation each.
* The loss is ``cross_entropy`` of all logits at once. It keeps the logarithms of the probabilities, and its backward
  pass holds three tensors of that size for a moment. Under autocast the logarithms are there in bf16 and in fp32, and
  the third tensor is their gradient in fp32.
* Where the head is tied, the embedding's gradient comes as a second tensor, and the sum of both as a third; in mixed
  precision it is added in place.
* Mixed precision is ``torch.autocast`` to bf16: weights, gradients, norms, the stream of hidden states and the loss
  are fp32; products and attention are bf16. The bf16 copies of the weights stay until the backward pass used them.
* Gradients are freed before the next forward pass (``zero_grad(set_to_none=True)``).
* AdamW is PyTorch's default on a GPU, which handles all weights at once and for that makes one temporary copy of a
  state; ``adamw-fused`` makes none.
* Tensor parallelism divides what Megatron-LM divides: the matrices, the heads, the vocabulary. Norms and the stream
  are whole on every GPU. Sharding over data-parallel GPUs divides optimizer states (stage 1), gradients (2) and
  weights (3); at stage 3 two layers, the embedding and the head are there whole while they are used. Buffers of the
  communication library are not counted.
* In generation the prompt is read in one piece, as long as the whole sequence; only its last position gets logits.
  The key and value cache holds every position, also where a layer looks back over a window only.

Models of the shape of GPT-2 are measured: the benchmark ``training-memory`` compares 24 configurations, training with
AdamW in three precisions and forward passes, with ``torch.cuda.max_memory_allocated``. What a gated layer with grouped
keys keeps is compared with what PyTorch keeps on a processor. Other optimizers, parallelism, the cache and weights of
fewer than 16 bits are derived and not measured.

References
----------
V. Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", 2022, sections 4 and 5:
activations of a layer, and their division over GPUs.
S. Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", 2020, sections 3 and 5.
T. Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016: checkpointing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from gpuguide.errors import GpuguideError

MIB = 2**20
PURPOSES = ("train", "generate", "evaluate")
"""``train``: forward, backward, optimizer. ``generate``: read a prompt into a cache, then one token after another.
``evaluate``: one forward pass that gives the logits of all positions."""
TRAINING_PRECISIONS = ("mixed", "bf16", "fp32")
WEIGHT_FORMATS = ("bf16", "fp32", "int8", "int4")
"""Of a model in use. 16-bit floats of either kind take the same. Embedding, head and norms stay in 16 bits."""
OPTIMIZERS = ("adamw", "adamw-fused", "sgd-momentum", "sgd")
CACHE_FORMATS = ("bf16", "fp32", "fp8")
BIASES = ("none", "qkv", "all")
PARTS = (
    "weights",
    "copies",
    "gradients",
    "optimizer",
    "cache",
    "activations",
    "logits",
    "temporary",
    "workspace",
)
"""What memory is for. ``copies``: weights in bf16 in mixed precision, or gathered from other GPUs. ``temporary``: what
an operation needs while it runs."""
STATE_COPIES = {"adamw": 2, "adamw-fused": 2, "sgd-momentum": 1, "sgd": 0}
"""Numbers that an optimizer keeps for each weight, in the format of the weight"""
ELEMENT_SIZE = {"fp32": 4.0, "bf16": 2.0, "fp8": 1.0, "int8": 1.0, "int4": 0.5 + 2 / 128}
"""Bytes a number. Four-bit weights have a 16-bit scale for every 128 of them (Frantar et al., "GPTQ", 2022)."""
LIBRARY_WORKSPACE = 32 * MIB
"""What cuBLAS keeps for each thread that computes products, on a GPU of compute capability 9.0"""
SAFE_SHARE = 0.9
"""Share of a GPU's memory that a run may take: the driver, other libraries and gaps between tensors need the rest"""
LARGEST = {"count": 10**6, "size": 10**9}
"""Bounds of what is accepted, far above any model: of layers, heads, GPUs and sequences, and of all else"""


@dataclass(frozen=True)
class Shape:
    """What of a model decides about its memory.

    Parameters
    ----------
    layers, hidden, heads, kv_heads, head_dim : int
        Layers, length of a hidden state, attention heads, heads of keys and values, and the length of each.
    intermediate : int
        Inner width of the feed-forward part.
    vocab, context : int
        Tokens that the model knows, and the longest sequence.
    gated : bool
        Whether the feed-forward part has three matrices (as in Llama) or two (as in GPT-2).
    tied : bool
        Whether the head is the token embedding.
    learned_positions : bool
        Whether there is a vector for each position.
    bias : str
        One of :data:`BIASES`: which linear layers have one.
    layer_norm : bool
        Whether norms are LayerNorm, with a bias, or RMSNorm, without.
    norms : int
        Norms a layer: 2, or 4 where each part has one before and one after it.
    qk_norm : bool
        Whether queries and keys are normalised.

    Raises
    ------
    GpuguideError
        If a value makes no sense.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    context: int
    gated: bool = True
    tied: bool = False
    learned_positions: bool = False
    bias: str = "none"
    layer_norm: bool = False
    norms: int = 2
    qk_norm: bool = False

    def __post_init__(self) -> None:
        _raise_first(shape_faults(self))

    @property
    def queries(self) -> int:
        """Length of all queries of a token."""
        return self.heads * self.head_dim

    @property
    def keys(self) -> int:
        """Length of all keys of a token; the values are as long."""
        return self.kv_heads * self.head_dim

    def parameters(self) -> int:
        """Return the number of parameters, a tied head counted once.

        >>> Shape(12, 768, 12, 12, 64, 3072, 50257, 1024, gated=False, tied=True, learned_positions=True, bias="all",
        ...       layer_norm=True).parameters()
        124439808
        """
        whole = Local(self, 1)
        return round(whole.total)


@dataclass(frozen=True)
class Setup:
    """How a model is run.

    Parameters
    ----------
    purpose : str
        One of :data:`PURPOSES`.
    precision : str
        In training one of :data:`TRAINING_PRECISIONS`, else one of :data:`WEIGHT_FORMATS`.
    batch : int
        Sequences on each data-parallel GPU at a time.
    seq_len : int
        Tokens of a sequence; in generation prompt and answer together.
    optimizer : str
        One of :data:`OPTIMIZERS`.
    checkpointing : bool
        Keep only the input of each layer and compute the rest again in the backward pass.
    fused_attention : bool
        Whether the scores of attention stay on the chip (FlashAttention and its like).
    cache : str
        One of :data:`CACHE_FORMATS`, in generation.
    tensor_parallel, data_parallel : int
        GPUs that share each matrix, and groups of GPUs that work on different sequences.
    sharding : int
        What is divided over data-parallel GPUs: nothing (0), optimizer states (1), gradients too (2), weights too (3).
    """

    purpose: str = "train"
    precision: str = "mixed"
    batch: int = 1
    seq_len: int = 1024
    optimizer: str = "adamw"
    checkpointing: bool = False
    fused_attention: bool = True
    cache: str = "bf16"
    tensor_parallel: int = 1
    data_parallel: int = 1
    sharding: int = 0

    @property
    def gpus(self) -> int:
        """GPUs in all."""
        return self.tensor_parallel * self.data_parallel


@dataclass(frozen=True)
class Moment:
    """What is in memory at one point of a step."""

    name: str
    parts: Mapping[str, float]
    """Bytes of each of :data:`PARTS`"""

    @property
    def total(self) -> float:
        """Bytes in all."""
        return sum(self.parts.values())


@dataclass(frozen=True)
class Prediction:
    """The moments of a step, in order."""

    moments: tuple[Moment, ...]

    @property
    def highest(self) -> Moment:
        """The moment that takes the most memory: the first one, if there are several."""
        return max(self.moments, key=lambda moment: moment.total)

    @property
    def total(self) -> float:
        """Bytes that the step needs."""
        return self.highest.total


@dataclass(frozen=True)
class Remedy:
    """One change to a run that lowers its memory."""

    change: str
    run: Setup
    total: float
    """Bytes that the changed run needs"""


# --- what makes sense ------------------------------------------------------------------------------------


def shape_faults(shape: Shape) -> dict[str, str]:
    """Return what is wrong with a shape: a sentence for each field that makes no sense."""
    faults: dict[str, str] = {}
    for name in ("layers", "heads", "kv_heads"):
        _check_whole(faults, name, getattr(shape, name), LARGEST["count"])
    for name in ("hidden", "head_dim", "intermediate", "vocab", "context"):
        _check_whole(faults, name, getattr(shape, name), LARGEST["size"])
    _check_choice(faults, "bias", shape.bias, BIASES)
    if shape.norms not in (2, 4):
        faults["norms"] = f"norms is {shape.norms}; a layer has 2 or 4."
    if not faults and shape.heads % shape.kv_heads:
        faults["kv_heads"] = f"kv_heads is {shape.kv_heads}; it must divide the {shape.heads} heads."
    return faults


def run_faults(shape: Shape, run: Setup) -> dict[str, str]:
    """Return what is wrong with a run of a model of this shape: a sentence for each field that makes no sense."""
    faults: dict[str, str] = {}
    _check_choice(faults, "purpose", run.purpose, PURPOSES)
    if not faults:
        precisions = TRAINING_PRECISIONS if run.purpose == "train" else WEIGHT_FORMATS
        _check_choice(faults, "precision", run.precision, precisions)
    _check_choice(faults, "optimizer", run.optimizer, OPTIMIZERS)
    _check_choice(faults, "cache", run.cache, CACHE_FORMATS)
    for name in ("batch", "tensor_parallel", "data_parallel"):
        _check_whole(faults, name, getattr(run, name), LARGEST["count"])
    _check_whole(faults, "seq_len", run.seq_len, LARGEST["size"])
    if "seq_len" not in faults and run.seq_len > shape.context:
        faults["seq_len"] = f"seq_len is {run.seq_len}; the model knows {shape.context} positions."
    if "tensor_parallel" not in faults:
        for name in ("heads", "intermediate"):
            if getattr(shape, name) % run.tensor_parallel:
                faults["tensor_parallel"] = (
                    f"tensor_parallel is {run.tensor_parallel}; it must divide the {getattr(shape, name)} of {name}."
                )
                break
    if run.sharding not in (0, 1, 2, 3):
        faults["sharding"] = f"sharding is {run.sharding}; choose 0, 1, 2 or 3."
    return faults


def _check_whole(faults: dict[str, str], name: str, value: int, largest: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= largest:
        faults[name] = f"{name} is {value}; it must be a whole number from 1 to {largest}."


def _check_choice(faults: dict[str, str], name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        faults[name] = f"{name} is {value}; choose one of {', '.join(choices)}."


def _raise_first(faults: Mapping[str, str]) -> None:
    for fault in faults.values():
        raise GpuguideError(fault)


# --- parameters on one GPU -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Local:
    """The parameters of a model that one of ``parts`` tensor-parallel GPUs holds, as counts of numbers."""

    shape: Shape
    parts: int

    @property
    def keys(self) -> float:
        """Length of the keys of a token here. Heads that are fewer than the GPUs are repeated."""
        return max(1.0, self.shape.kv_heads / self.parts) * self.shape.head_dim

    @property
    def queries(self) -> float:
        """Length of the queries of a token here."""
        return self.shape.queries / self.parts

    @property
    def inner(self) -> float:
        """Width of the feed-forward part here."""
        return self.shape.intermediate / self.parts

    @property
    def vocab(self) -> float:
        """Tokens whose vectors and scores are here."""
        return self.shape.vocab / self.parts

    @property
    def feed_forward(self) -> float:
        """Numbers in the matrices of a feed-forward part."""
        return (3 if self.shape.gated else 2) * self.shape.hidden * self.inner

    @property
    def matrices(self) -> float:
        """Numbers in the matrices of a layer."""
        return self.shape.hidden * (2 * self.queries + 2 * self.keys) + self.feed_forward

    @property
    def layer(self) -> float:
        """Numbers in a layer: its matrices, biases and norms."""
        shape = self.shape
        biases = 0.0
        if shape.bias != "none":
            biases += self.queries + 2 * self.keys
        if shape.bias == "all":
            biases += (2 if shape.gated else 1) * self.inner + 2 * shape.hidden
        norms = shape.norms * self.norm + (2 * shape.head_dim if shape.qk_norm else 0)
        return self.matrices + biases + norms

    @property
    def norm(self) -> float:
        """Numbers in a norm."""
        return self.shape.hidden * (2 if self.shape.layer_norm else 1)

    @property
    def head(self) -> float:
        """Numbers in the head; as many are in the token embedding, which may be the same."""
        return self.vocab * self.shape.hidden

    @property
    def ends(self) -> float:
        """Numbers outside the layers."""
        shape = self.shape
        positions = shape.context * shape.hidden if shape.learned_positions else 0
        return self.head * (1 if shape.tied else 2) + positions + self.norm

    @property
    def total(self) -> float:
        """Numbers in all."""
        return self.shape.layers * self.layer + self.ends


# --- training --------------------------------------------------------------------------------------------


def predict(shape: Shape, run: Setup) -> Prediction:
    """Return the memory of one GPU in each moment of a step of training, or of a forward pass.

    Raises
    ------
    GpuguideError
        If the run makes no sense for this shape.
    """
    _raise_first(run_faults(shape, run))
    moments = _training(shape, run) if run.purpose == "train" else _inference(shape, run)
    return Prediction(tuple(Moment(name, {part: parts.get(part, 0.0) for part in PARTS}) for name, parts in moments))


def activations_of_layer(shape: Shape, run: Setup) -> float:
    """Return the bytes that a layer keeps for its backward pass, the norms' inputs included."""
    local, tokens = Local(shape, run.tensor_parallel), run.batch * run.seq_len
    compute, stream = _compute_size(run), _stream_size(run)
    statistics = 8 if shape.layer_norm else 4
    norms = tokens * (shape.norms * (stream * shape.hidden + statistics) + 2 * compute * shape.hidden)
    if shape.qk_norm:
        norms += tokens * (stream * (local.queries + local.keys) + 4 * (local.queries + local.keys) / shape.head_dim)
    return norms + _attention(shape, run) + _feed_forward(shape, run)


def _attention(shape: Shape, run: Setup) -> float:
    """Return the bytes that attention keeps: queries, keys, values, its output, and what it needs of the scores."""
    local, tokens = Local(shape, run.tensor_parallel), run.batch * run.seq_len
    compute = _compute_size(run)
    output = compute * tokens * local.queries
    heads = local.queries / shape.head_dim
    if run.fused_attention:
        return output + compute * tokens * (local.queries + 2 * local.keys) + 4 * tokens * heads
    # The plain way computes in fp32, with keys and values repeated for every head; queries and keys are scaled copies.
    copies = 4 * tokens * 3 * local.queries
    if compute == 4:
        copies += 4 * tokens * 2 * local.keys
    return output + copies + _scores(shape, run)


def _scores(shape: Shape, run: Setup) -> float:
    """Return the bytes of the scores of all heads, in fp32."""
    return 4 * run.batch * shape.heads / run.tensor_parallel * run.seq_len**2


def _feed_forward(shape: Shape, run: Setup) -> float:
    """Return the bytes that the feed-forward part keeps, its own input aside."""
    kept = 4 if shape.gated else 2
    return _compute_size(run) * run.batch * run.seq_len * kept * Local(shape, run.tensor_parallel).inner


def _compute_size(run: Setup) -> float:
    """Return the bytes of a number in products and attention."""
    return 4.0 if run.precision == "fp32" else 2.0


def _stream_size(run: Setup) -> float:
    """Return the bytes of a number in the stream of hidden states."""
    return 2.0 if run.precision in ("bf16", "int8", "int4") else 4.0


def _backward_of_layer(shape: Shape, run: Setup, *, gradient: float) -> float:
    """Return the bytes, beyond what was kept, that the backward pass of a layer takes at its highest point."""
    local, tokens = Local(shape, run.tensor_parallel), run.batch * run.seq_len
    compute, stream = _compute_size(run), _stream_size(run)
    through = tokens * shape.hidden * (stream + (compute if run.precision == "mixed" else 0))
    wide = tokens * local.inner * compute * (2 if shape.gated else 1) + compute * shape.hidden * local.inner
    if run.fused_attention:
        return through + wide
    freed = _feed_forward(shape, run) + tokens * shape.hidden * (stream + compute)
    narrow = 2 * _scores(shape, run) + 4 * tokens * local.queries + gradient * local.feed_forward - freed
    return through + max(wide, narrow)


def _training(shape: Shape, run: Setup) -> Iterator[tuple[str, dict[str, float]]]:
    local, tokens = Local(shape, run.tensor_parallel), run.batch * run.seq_len
    mixed = run.precision == "mixed"
    compute, stream = _compute_size(run), _stream_size(run)
    number = 2.0 if run.precision == "bf16" else 4.0  # of weights, gradients, states and the loss alike
    shards = [run.data_parallel if run.sharding >= stage else 1 for stage in (0, 1, 2, 3)]
    gathered = run.sharding == 3 and run.data_parallel > 1

    fixed = {
        "weights": number * local.total / shards[3],
        "optimizer": number * STATE_COPIES[run.optimizer] * local.total / shards[1],
        "workspace": 2.0 * LIBRARY_WORKSPACE,
    }

    def copies(layers: float, ends: float) -> float:
        """Return the bytes of weights in the format of the products, of so many layers and of the head."""
        if gathered:
            return compute * (min(layers, 2.0) * local.layer + local.ends)
        return compute * (layers * local.matrices + ends * local.head) if mixed else 0.0

    def gradients(layers: float, ends: float) -> float:
        """Return the bytes of the gradients of so many layers; of one they are whole before they are divided."""
        if shards[2] == 1:
            return number * (layers * local.layer + ends)
        return number * ((layers * local.layer + ends) / shards[2] + min(1.0, layers) * local.layer)

    layer = activations_of_layer(shape, run)
    streams = shape.layers * stream * tokens * shape.hidden
    kept = streams if run.checkpointing else shape.layers * layer
    norm = tokens * ((stream + compute) * shape.hidden + (8 if shape.layer_norm else 4))
    inputs = 16.0 * tokens
    scores = tokens * local.vocab
    layers = float(shape.layers)

    yield (
        "loss, forward",
        {
            **fixed,
            "copies": copies(layers, 1),
            "activations": inputs + kept + norm,
            "logits": scores * (2 * compute + (number if mixed else 0)),
        },
    )
    held = 0.0 if run.checkpointing else layers
    yield (
        "loss, backward",
        {
            **fixed,
            "copies": copies(held, 1),
            "activations": inputs + kept + norm,
            "logits": scores * (2 * number + compute),
        },
    )
    yield (
        "head, backward",
        {
            **fixed,
            "copies": copies(held, 1),
            "activations": inputs + kept + norm,
            "temporary": compute * tokens * shape.hidden
            + max(compute * (scores + local.head), (compute + number) * local.head if mixed else 0),
        },
    )
    again = layer - stream * tokens * shape.hidden if run.checkpointing else 0.0
    working = _backward_of_layer(shape, run, gradient=number)
    yield (
        "last layer, backward",
        {
            **fixed,
            "copies": copies(max(held, 1), 0),
            "activations": inputs + kept + again,
            "gradients": gradients(0, local.head),
            "temporary": working,
        },
    )
    yield (
        "first layer, backward",
        {
            **fixed,
            "copies": copies(1, 0),
            "activations": inputs + layer,
            "gradients": gradients(layers - 1, local.head),
            "temporary": working,
        },
    )
    yield (
        "embedding, backward",
        {
            **fixed,
            "copies": copies(0, 0),
            "activations": inputs,
            "gradients": gradients(layers, local.ends),
            "temporary": stream * tokens * shape.hidden
            + (number * local.head * (1 if mixed else 2) if shape.tied else 0),
        },
    )
    yield (
        "optimizer",
        {
            **fixed,
            "activations": inputs,
            "gradients": number * local.total / shards[2],
            "temporary": number * local.total / shards[1] if run.optimizer == "adamw" else 0.0,
        },
    )


# --- a model in use --------------------------------------------------------------------------------------


def cache_bytes(shape: Shape, run: Setup) -> float:
    """Return the bytes of the keys and values of all positions, on one GPU."""
    positions = run.batch * run.seq_len
    return 2 * shape.layers * Local(shape, run.tensor_parallel).keys * positions * ELEMENT_SIZE[run.cache]


def weight_bytes(shape: Shape, run: Setup) -> float:
    """Return the bytes of the weights of a model in use, on one GPU."""
    local = Local(shape, run.tensor_parallel)
    matrices = shape.layers * local.matrices
    rest = ELEMENT_SIZE["fp32" if run.precision == "fp32" else "bf16"]
    return matrices * ELEMENT_SIZE[run.precision] + (local.total - matrices) * rest


def _inference(shape: Shape, run: Setup) -> Iterator[tuple[str, dict[str, float]]]:
    local, tokens = Local(shape, run.tensor_parallel), run.batch * run.seq_len
    generates = run.purpose == "generate"
    compute = _compute_size(run)
    fixed = {
        "weights": weight_bytes(shape, run),
        "cache": cache_bytes(shape, run) if generates else 0.0,
        "workspace": 1.0 * LIBRARY_WORKSPACE,
    }
    inputs = 16.0 * tokens
    wide = tokens * (3 * shape.hidden + (3 if shape.gated else 2) * local.inner) * compute
    if not run.fused_attention:
        plain = 2 * _scores(shape, run) + tokens * (2 * shape.hidden * compute + 3 * local.queries * (compute + 4))
        wide = max(wide, plain)
    yield "widest layer", {**fixed, "activations": inputs, "temporary": wide}
    scored = run.batch if generates else tokens
    yield (
        "logits",
        {
            **fixed,
            "activations": inputs + 2 * compute * tokens * shape.hidden,
            "logits": compute * scored * local.vocab,
        },
    )


# --- does it fit? ----------------------------------------------------------------------------------------


def judge(total: float, capacity: float) -> str:
    """Return ``fits``, ``tight`` (more than :data:`SAFE_SHARE` of a GPU's memory) or ``too large``."""
    if total <= SAFE_SHARE * capacity:
        return "fits"
    return "tight" if total <= capacity else "too large"


# --- when it does not fit --------------------------------------------------------------------------------


def remedies(shape: Shape, run: Setup) -> list[Remedy]:
    """Return single changes that lower the memory of a run, each with what it leads to.

    Parameters
    ----------
    shape : Shape
        The model.
    run : Setup
        A run that makes sense for it.
    """
    now = predict(shape, run).total
    found = []
    for change, changed in _changes(shape, run):
        if not run_faults(shape, changed):
            total = predict(shape, changed).total
            if total < 0.995 * now:
                found.append(Remedy(change, changed, total))
    return found


def _changes(shape: Shape, run: Setup) -> Iterator[tuple[str, Setup]]:
    """Yield the changes worth trying, those that cost the least first."""
    if not run.fused_attention:
        yield "use fused attention", replace(run, fused_attention=True)
    if run.purpose == "train":
        if run.optimizer == "adamw":
            yield "use the fused AdamW", replace(run, optimizer="adamw-fused")
        if run.precision == "fp32":
            yield "train in mixed precision", replace(run, precision="mixed")
        if not run.checkpointing:
            yield "checkpoint the layers", replace(run, checkpointing=True)
    if run.batch > 1:
        yield f"halve the batch to {run.batch // 2}", replace(run, batch=run.batch // 2)
    if run.seq_len > 1:
        yield f"halve the sequences to {run.seq_len // 2} tokens", replace(run, seq_len=run.seq_len // 2)
    if run.purpose == "train":
        for gpus in (2, 4, 8):
            if gpus > run.data_parallel or run.sharding < 3:
                yield (
                    f"shard everything over {max(gpus, run.data_parallel)} GPUs",
                    replace(run, data_parallel=max(gpus, run.data_parallel), sharding=3),
                )
    else:
        for precision in ("bf16", "int8", "int4"):
            if ELEMENT_SIZE[precision] < ELEMENT_SIZE[run.precision]:
                yield f"store the weights as {precision}", replace(run, precision=precision)
        if run.purpose == "generate" and run.cache != "fp8":
            yield "store the cache as fp8", replace(run, cache="fp8")
    for gpus in (2, 4, 8):
        if gpus > run.tensor_parallel:
            yield f"divide the matrices over {gpus} GPUs", replace(run, tensor_parallel=gpus)


def largest_batch(shape: Shape, run: Setup, available: float) -> int:
    """Return how many sequences at a time fit into ``available`` bytes: 0 if not even one does."""
    if predict(shape, replace(run, batch=1)).total > available:
        return 0
    low, high = 1, 2
    while high <= LARGEST["count"] and predict(shape, replace(run, batch=high)).total <= available:
        low, high = high, 2 * high
    high = min(high, LARGEST["count"] + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if predict(shape, replace(run, batch=middle)).total <= available else (low, middle)
    return low
