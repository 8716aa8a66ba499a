"""Gradient norm by depth: a small GPT whose residual connections and norms can be moved or taken out.

Going backward, a layer multiplies the gradient by its own derivative. A residual connection adds the gradient of its
output to the product, so that the sum reaches the first layer whatever the layers between do.

References
----------
R. Xiong et al., "On Layer Normalization in the Transformer Architecture", 2020, for pre-norm and post-norm.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

import torch
from torch import nn
from torch.nn import functional

from gpuguide.errors import GpuguideError, unknown

WIRINGS = {
    "pre-norm": "x + f(norm(x)), as GPT-2 and Llama",
    "post-norm": "norm(x + f(x)), as the first transformer",
    "no-norm": "x + f(x)",
    "no-residual": "f(norm(x)), without the addition",
    "neither": "f(x), without addition or norm",
}
"""How each half of a block is joined to the stream"""
STARTS = ("gpt2", "xavier")
"""First weights: normal with a deviation of 0.02, and smaller where a layer adds to the stream, or Xavier's"""


class _Attention(nn.Module):
    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query_key_value = nn.Linear(hidden, 3 * hidden)
        self.out = nn.Linear(hidden, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Mix positions: ``(batch, seq, hidden)`` to the same shape."""
        parts = self.query_key_value(x).chunk(3, -1)
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(-2))


class WiredBlock(nn.Module):
    """Attention and a feed-forward part, joined to the stream by one of :data:`WIRINGS`."""

    def __init__(self, hidden: int, heads: int, wiring: str) -> None:
        super().__init__()
        self.wiring = wiring
        self.attention = _Attention(hidden, heads)
        up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)
        self.feed_forward = nn.Sequential(up, nn.GELU(approximate="tanh"), self.down)
        has_norms = wiring not in ("no-norm", "neither")
        self.norms = nn.ModuleList(nn.LayerNorm(hidden) if has_norms else nn.Identity() for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the stream after this block: ``(batch, seq, hidden)`` to the same shape."""
        for part, norm in zip((self.attention, self.feed_forward), self.norms, strict=True):
            if self.wiring == "post-norm":
                x = norm(x + part(x))
            elif self.wiring in ("no-residual", "neither"):
                x = part(norm(x))
            else:
                x = x + part(norm(x))
        return x


class WiredModel(nn.Module):
    """A GPT whose wiring can be chosen; calling it with tokens ``(batch, seq)`` gives logits.

    Parameters
    ----------
    vocab_size, context, layers, heads, hidden : int
        Shape.
    wiring : str
        One of :data:`WIRINGS`.
    start : str
        One of :data:`STARTS`.

    Raises
    ------
    UnknownName
        If there is no such wiring or start.
    """

    def __init__(
        self,
        vocab_size: int,
        context: int,
        layers: int,
        heads: int,
        hidden: int,
        wiring: str = "pre-norm",
        start: str = "gpt2",
    ) -> None:
        super().__init__()
        if wiring not in WIRINGS:
            raise unknown("wiring", wiring, WIRINGS)
        if start not in STARTS:
            raise unknown("start", start, STARTS)
        self.token_embedding = nn.Embedding(vocab_size, hidden)
        self.position_embedding = nn.Embedding(context, hidden)
        blocks = [WiredBlock(hidden, heads, wiring) for _ in range(layers)]
        self.blocks = nn.ModuleList(blocks)
        ends_normed = wiring in ("pre-norm", "no-residual")  # post-norm blocks end with a norm of their own
        self.final_norm = nn.LayerNorm(hidden) if ends_normed else nn.Identity()
        self.head = nn.Linear(hidden, vocab_size, bias=False)
        self.apply(_start_as_gpt2 if start == "gpt2" else _start_as_xavier)
        for block in blocks if start == "gpt2" else ():
            for added in (block.attention.out, block.down):
                nn.init.normal_(added.weight, std=0.02 / math.sqrt(2 * layers))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return logits, ``(batch, seq, vocab_size)``."""
        x = self.token_embedding(tokens) + self.position_embedding.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.final_norm(x))


def _start_as_gpt2(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)


def _start_as_xavier(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        nn.init.xavier_uniform_(module.weight)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    if isinstance(module, nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)


def find_layers(model: nn.Module) -> list[nn.Module]:
    """Return the longest ``nn.ModuleList`` of a model; an empty list if there is none."""
    return max((list(each) for each in model.modules() if isinstance(each, nn.ModuleList)), key=len, default=[])


@torch.no_grad()
def norm_by_layer(model: nn.Module, layers: Iterable[nn.Module] | None = None) -> list[float]:
    """Return the norm of the gradients of each layer's parameters together, the first layer first.

    Parameters
    ----------
    model : nn.Module
        After ``backward()``.
    layers : iterable of nn.Module, optional
        The layers; by default the longest ``nn.ModuleList`` of the model.

    Raises
    ------
    GpuguideError
        If there are no layers, or one of them has no gradient.
    """
    found = find_layers(model) if layers is None else list(layers)
    if not found:
        raise GpuguideError(f"{type(model).__name__} has no nn.ModuleList of layers; pass the layers.")
    norms = []
    for number, layer in enumerate(found):
        gradients = [each.grad for each in layer.parameters() if each.grad is not None]
        if not gradients:
            raise GpuguideError(f"Layer {number} has no gradient; call norm_by_layer after backward().")
        in_layer = torch.stack(torch._foreach_norm(gradients, 2, torch.float64))  # squares of 1e-30 are 0 in fp32
        norms.append(torch.linalg.vector_norm(in_layer))
    return torch.stack(norms).tolist()


def gradients_between(layers: Iterable[nn.Module], run: Callable[[], torch.Tensor]) -> list[torch.Tensor]:
    """Return the gradients of the loss with respect to the stream before each layer, and after the last one.

    Parameters
    ----------
    layers : iterable of nn.Module
        Layers in the order in which they are called, each from one tensor to one tensor.
    run : callable
        Runs the forward pass and returns the loss. ``.grad`` of the parameters stays as it is.
    """
    stream: list[torch.Tensor] = []

    def keep(layer: nn.Module, inputs: tuple[torch.Tensor], output: torch.Tensor) -> None:
        if not stream:
            stream.append(inputs[0])
        stream.append(output)

    hooks = [layer.register_forward_hook(keep) for layer in layers]
    try:
        loss = run()
    finally:
        for hook in hooks:
            hook.remove()
    return list(torch.autograd.grad(loss, stream))


def norms_of_wirings(layers: int, start: str = "gpt2") -> Mapping[str, list[float]]:
    """Return the gradient norm by layer at the start of training, for each of :data:`WIRINGS`, on random tokens."""
    norms = {}
    for wiring in WIRINGS:
        model, run = example(layers, wiring, start)
        run().backward()
        norms[wiring] = norm_by_layer(model)
    return norms


def example(layers: int, wiring: str, start: str = "gpt2") -> tuple[WiredModel, Callable[[], torch.Tensor]]:
    """Return a small model with a hidden size of 64, and a function that computes its loss on 4 × 32 random tokens."""
    tokens = torch.randint(256, (4, 33), generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    model = WiredModel(256, 32, layers, 4, 64, wiring, start)

    def run() -> torch.Tensor:
        return functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())

    return model, run
