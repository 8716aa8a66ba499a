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
* In generation the prompts are read all at once, as long as the whole sequence, or ``chunk`` tokens at a time; only the
  last position of each gets logits. The key and value cache holds every position, also where a layer looks back over a
  window only.
* While batches are added up, all gradients are held from the first one on, and a new one is whole before it is added.
* Adapters (LoRA) share the input of the product beside them, and train in the format of ``precision``; the frozen
  weights compute in bf16, and the matrices of the layers are stored as ``base`` says. One of 8 or 4 bits is unpacked
  while it is used. Products without an adapter keep no input. In mixed precision there are bf16 copies of the adapters.
* A loss in chunks is :func:`gpuguide.cross_entropy.linear_cross_entropy`: one chunk of logits at a time, and with them
  the gradients of the hidden states and of the head. An optimizer's step inside the backward pass frees each gradient
  as soon as its weight is updated; that of a tied head waits for the embedding's. Activations on the host are those of
  :mod:`gpuguide.training_memory.offload`.
* The experts of a mixture are all in memory; what is gathered for those that a token uses, and what they return, is
  kept. Their products are computed one expert after another.

Models of the shape of GPT-2 are measured: the benchmark ``training-memory`` compares 24 configurations, training with
AdamW in three precisions and forward passes, with ``torch.cuda.max_memory_allocated``. What a gated layer with grouped
keys, a layer with adapters and a mixture of experts keep, and what two batches added up take, is compared with what
PyTorch keeps on a processor; optimizers and weights in fewer bits, adapters and experts of large models with what was
published (:mod:`gpuguide.costs.published`). DDP and ZeRO-3 on two and four GPUs are compared by the benchmark
``sharded-memory``; DDP's gradient buckets are not counted. Tensor parallelism, ZeRO-1 and ZeRO-2 are derived and not
measured.

The formulas stand in ``model.toml`` beside this module, where the calculator on the site takes them from as well.

References
----------
V. Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", 2022, sections 4 and 5:
activations of a layer, and their division over GPUs.
S. Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", 2020, sections 3 and 5.
T. Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016: checkpointing.
"""

from __future__ import annotations

from gpuguide.costs.memory.fitting import (
    SAFE_SHARE,
    Remedy,
    combine_remedies,
    judge,
    largest_batch,
    remedies,
)
from gpuguide.costs.memory.prediction import (
    ELEMENT_SIZE,
    LIBRARY_WORKSPACE,
    PART_NAMES,
    PARTS,
    STATE_BYTES,
    STATE_COPIES,
    MemoryPrediction,
    Moment,
    activations_of_layer,
    cache_bytes,
    predict,
    values,
    weight_bytes,
)
from gpuguide.costs.memory.setup import (
    ACTIVATIONS,
    ADAPTED,
    BASES,
    CACHE_FORMATS,
    LOSSES,
    OPTIMIZERS,
    PREFILLS,
    PURPOSES,
    TRAINING_PRECISIONS,
    WEIGHT_FORMATS,
    Setup,
    setup_faults,
)
from gpuguide.costs.memory.shape import (
    BIASES,
    Local,
    Shape,
    local,
    shape_faults,
)

__all__ = [  # noqa: RUF022 - the order of the API reference
    "PURPOSES",
    "TRAINING_PRECISIONS",
    "WEIGHT_FORMATS",
    "OPTIMIZERS",
    "CACHE_FORMATS",
    "ADAPTED",
    "BASES",
    "PREFILLS",
    "LOSSES",
    "ACTIVATIONS",
    "BIASES",
    "PARTS",
    "PART_NAMES",
    "STATE_COPIES",
    "STATE_BYTES",
    "ELEMENT_SIZE",
    "LIBRARY_WORKSPACE",
    "SAFE_SHARE",
    "Shape",
    "Setup",
    "Moment",
    "MemoryPrediction",
    "Remedy",
    "shape_faults",
    "setup_faults",
    "Local",
    "local",
    "values",
    "predict",
    "activations_of_layer",
    "cache_bytes",
    "weight_bytes",
    "judge",
    "remedies",
    "combine_remedies",
    "largest_batch",
]
