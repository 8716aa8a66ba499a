"""Training: what a layer keeps for its backward pass, and the moments of a step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from gpuguide.costs.memory.setup import Setup
from gpuguide.costs.memory.shape import Local, Shape
from gpuguide.costs.memory.sizes import LIBRARY_WORKSPACE, compute_size, scores, stream_size

STATE_COPIES = {"adamw": 2, "adamw-fused": 2, "sgd-momentum": 1, "sgd": 0}
"""Numbers that an optimizer keeps for each weight, in the format of the weight"""


def activations_of_layer(shape: Shape, setup: Setup) -> float:
    """Return the bytes that a layer keeps for its backward pass, the norms' inputs included."""
    local, tokens = Local(shape, setup.tensor_parallel), setup.batch * setup.seq_len
    compute, stream = compute_size(setup), stream_size(setup)
    statistics = 8 if shape.layer_norm else 4
    norms = tokens * (shape.norms * (stream * shape.hidden + statistics) + 2 * compute * shape.hidden)
    if shape.qk_norm:
        norms += tokens * (stream * (local.queries + local.keys) + 4 * (local.queries + local.keys) / shape.head_dim)
    return norms + _attention(shape, setup) + _feed_forward(shape, setup)


def _attention(shape: Shape, setup: Setup) -> float:
    """Return the bytes that attention keeps: queries, keys, values, its output, and what it needs of the scores."""
    local, tokens = Local(shape, setup.tensor_parallel), setup.batch * setup.seq_len
    compute = compute_size(setup)
    output = compute * tokens * local.queries
    heads = local.queries / shape.head_dim
    if setup.fused_attention:
        return output + compute * tokens * (local.queries + 2 * local.keys) + 4 * tokens * heads
    # The plain way computes in fp32, with keys and values repeated for every head; queries and keys are scaled copies.
    copies = 4 * tokens * 3 * local.queries
    if compute == 4:
        copies += 4 * tokens * 2 * local.keys
    return output + copies + scores(shape, setup)


def _feed_forward(shape: Shape, setup: Setup) -> float:
    """Return the bytes that the feed-forward part keeps, its own input aside."""
    kept = 4 if shape.gated else 2
    return compute_size(setup) * setup.batch * setup.seq_len * kept * Local(shape, setup.tensor_parallel).inner


def _backward_of_layer(shape: Shape, setup: Setup, *, gradient: float) -> float:
    """Return the bytes, beyond what was kept, that the backward pass of a layer takes at its highest point."""
    local, tokens = Local(shape, setup.tensor_parallel), setup.batch * setup.seq_len
    compute, stream = compute_size(setup), stream_size(setup)
    through = tokens * shape.hidden * (stream + (compute if setup.precision == "mixed" else 0))
    wide = tokens * local.inner * compute * (2 if shape.gated else 1) + compute * shape.hidden * local.inner
    if setup.fused_attention:
        return through + wide
    freed = _feed_forward(shape, setup) + tokens * shape.hidden * (stream + compute)
    narrow = 2 * scores(shape, setup) + 4 * tokens * local.queries + gradient * local.feed_forward - freed
    return through + max(wide, narrow)


@dataclass(frozen=True)
class Step:
    """One step of training, followed through its moments. Sizes are bytes on one GPU."""

    shape: Shape
    setup: Setup

    def moments(self) -> Iterator[tuple[str, dict[str, float]]]:
        """Yield each moment's name and what is in memory then, in order."""
        yield "loss, forward", self.loss_forward()
        yield "loss, backward", self.loss_backward()
        yield "head, backward", self.head_backward()
        yield "last layer, backward", self.last_layer_backward()
        yield "first layer, backward", self.first_layer_backward()
        yield "embedding, backward", self.embedding_backward()
        yield "optimizer", self.optimizer()

    # What stays through the step, and sizes that the moments share.

    @cached_property
    def fixed(self) -> dict[str, float]:
        """What is there from the first moment to the last."""
        return {
            "weights": self.number * self.local.total / self.shards(3),
            "optimizer": self.number * STATE_COPIES[self.setup.optimizer] * self.local.total / self.shards(1),
            "workspace": 2.0 * LIBRARY_WORKSPACE,
        }

    @cached_property
    def local(self) -> Local:
        """The parameters of this GPU."""
        return Local(self.shape, self.setup.tensor_parallel)

    @cached_property
    def tokens(self) -> int:
        """Tokens of the step."""
        return self.setup.batch * self.setup.seq_len

    @property
    def mixed(self) -> bool:
        """Whether products are computed in another format than the weights have."""
        return self.setup.precision == "mixed"

    @cached_property
    def compute(self) -> float:
        """Bytes of a number in products and attention."""
        return compute_size(self.setup)

    @cached_property
    def number(self) -> float:
        """Bytes of a number of weights, gradients, states and the loss alike."""
        return 2.0 if self.setup.precision == "bf16" else 4.0

    @cached_property
    def stream(self) -> float:
        """The hidden states of all tokens."""
        return stream_size(self.setup) * self.tokens * self.shape.hidden

    @cached_property
    def layer(self) -> float:
        """What a layer keeps for its backward pass."""
        return activations_of_layer(self.shape, self.setup)

    @cached_property
    def kept(self) -> float:
        """What all layers keep: with checkpointing only what enters each."""
        return self.shape.layers * (self.stream if self.setup.checkpointing else self.layer)

    @property
    def layers_held(self) -> float:
        """Layers whose weights have a copy in the format of the products when the backward pass begins."""
        return 0.0 if self.setup.checkpointing else float(self.shape.layers)

    @property
    def inputs(self) -> float:
        """Tokens and targets, each an int64."""
        return 16.0 * self.tokens

    @property
    def final_norm(self) -> float:
        """What the norm before the head keeps."""
        width = stream_size(self.setup) + self.compute
        return self.tokens * (width * self.shape.hidden + (8 if self.shape.layer_norm else 4))

    @property
    def scores(self) -> float:
        """Logits of the step, as a count of numbers."""
        return self.tokens * self.local.vocab

    def shards(self, stage: int) -> int:
        """Return over how many GPUs what a stage of sharding divides is divided."""
        return self.setup.data_parallel if self.setup.sharding >= stage else 1

    def copies(self, layers: float, heads: float) -> float:
        """Return the weights in the format of the products, of so many layers and of the head."""
        if self.setup.sharding == 3 and self.setup.data_parallel > 1:  # gathered from the other GPUs
            return self.compute * (min(layers, 2.0) * self.local.layer + self.local.ends)
        return self.compute * (layers * self.local.matrices + heads * self.local.head) if self.mixed else 0.0

    def gradients(self, layers: float, ends: float) -> float:
        """Return the gradients of so many layers and ``ends`` numbers; of one layer they are whole, then divided."""
        whole = layers * self.local.layer + ends
        if self.shards(2) == 1:
            return self.number * whole
        return self.number * (whole / self.shards(2) + min(1.0, layers) * self.local.layer)

    # The moments.

    def loss_forward(self) -> dict[str, float]:
        """Return what is there when the loss is known: all activations, logits and log-probabilities."""
        return {
            **self.fixed,
            "copies": self.copies(float(self.shape.layers), 1),
            "activations": self.inputs + self.kept + self.final_norm,
            "logits": self.scores * (2 * self.compute + (self.number if self.mixed else 0)),
        }

    def loss_backward(self) -> dict[str, float]:
        """Return what is there when three tensors of the size of the logits are."""
        return {
            **self.fixed,
            "copies": self.copies(self.layers_held, 1),
            "activations": self.inputs + self.kept + self.final_norm,
            "logits": self.scores * (2 * self.number + self.compute),
        }

    def head_backward(self) -> dict[str, float]:
        """Return what is there when the gradient of the logits becomes those of head and hidden states."""
        local, compute = self.local, self.compute
        widened = (compute + self.number) * local.head if self.mixed else 0
        return {
            **self.fixed,
            "copies": self.copies(self.layers_held, 1),
            "activations": self.inputs + self.kept + self.final_norm,
            "temporary": compute * self.tokens * self.shape.hidden + max(compute * (self.scores + local.head), widened),
        }

    def last_layer_backward(self) -> dict[str, float]:
        """Return what is there when the layers' backward pass begins: with checkpointing, one layer anew."""
        again = self.layer - self.stream if self.setup.checkpointing else 0.0
        return {
            **self.fixed,
            "copies": self.copies(max(self.layers_held, 1), 0),
            "activations": self.inputs + self.kept + again,
            "gradients": self.gradients(0, self.local.head),
            "temporary": _backward_of_layer(self.shape, self.setup, gradient=self.number),
        }

    def first_layer_backward(self) -> dict[str, float]:
        """Return what is there at its end: the activations of one layer, and the gradients of all others."""
        return {
            **self.fixed,
            "copies": self.copies(1, 0),
            "activations": self.inputs + self.layer,
            "gradients": self.gradients(float(self.shape.layers) - 1, self.local.head),
            "temporary": _backward_of_layer(self.shape, self.setup, gradient=self.number),
        }

    def embedding_backward(self) -> dict[str, float]:
        """Return what is there with all gradients: a tied head has a second, and but for mixed precision their sum."""
        second = self.number * self.local.head * (1 if self.mixed else 2) if self.shape.tied else 0
        return {
            **self.fixed,
            "copies": self.copies(0, 0),
            "activations": self.inputs,
            "gradients": self.gradients(float(self.shape.layers), self.local.ends),
            "temporary": self.stream + second,
        }

    def optimizer(self) -> dict[str, float]:
        """Return what is there when the weights change: AdamW on all weights at once copies a state."""
        copied = self.number * self.local.total / self.shards(1) if self.setup.optimizer == "adamw" else 0.0
        return {
            **self.fixed,
            "activations": self.inputs,
            "gradients": self.number * self.local.total / self.shards(2),
            "temporary": copied,
        }
