"""A model's layers that come over the link: a forward pass against what the link alone takes, and the GPU alone."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import nn

from gpuguide.hardware.device import Device
from gpuguide.interconnect.offload import OffloadedLayers
from gpuguide.measure.benchmark import Benchmark, Contender, Keys, Work, beyond_memory
from gpuguide.measure.records import Rate
from gpuguide.models import llama, shapes

SHAPE = "llama-7b-shape"
ELEMENT_SIZE = 2
"""Bytes of a bf16 number"""
SEQUENCE = 512
"""Tokens of each sequence"""
TOKENS = (512, 8192)
"""Tokens of all sequences together: the link decides, and the layers compute about as long as they travel"""


@dataclass(frozen=True)
class Inputs:
    """Inputs of the first layer: hidden states, and the angles of the positions."""

    hidden: torch.Tensor
    """(sequences, seq_len, hidden)"""
    cos: torch.Tensor
    sin: torch.Tensor

    @classmethod
    def draw(cls, config: llama.LlamaConfig, tokens: int, device: str) -> Inputs:
        """Draw the hidden states of ``tokens`` tokens in bf16."""
        length = min(tokens, SEQUENCE)
        hidden = torch.randn(tokens // length, length, config.hidden, device=device).bfloat16()
        cos, sin = llama.Rotary(config)(torch.arange(length, device=device), torch.bfloat16)
        return cls(hidden, cos, sin)


def layer(config: llama.LlamaConfig, index: int, device: str) -> nn.Module:
    """Return a layer with random weights in bf16, drawn on the device: the same ones for the same index."""
    with torch.device("meta"):
        made = llama.LlamaBlock(config).to(torch.bfloat16)
    made = made.to_empty(device=device)
    generator = torch.Generator(device).manual_seed(index)
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.ndim == 2:
                parameter.normal_(0.0, shapes.SPREAD, generator=generator)
            else:
                parameter.fill_(1.0)
    return made.eval()


def layers(config: llama.LlamaConfig, device: str) -> Iterator[nn.Module]:
    """Yield all layers, one after the other, so that a GPU need not hold them together."""
    return (layer(config, index, device) for index in range(config.layers))


@functools.lru_cache(maxsize=1)
def offload_layers(config: llama.LlamaConfig, device: str) -> OffloadedLayers:
    """Return the layers in the host's memory, once for all contenders and cases: to pin so much takes seconds."""
    return OffloadedLayers([each.cpu() for each in layers(config, device)], device)


@torch.no_grad()
def compute_expected(config: llama.LlamaConfig, inputs: Inputs, device: str) -> torch.Tensor:
    """Return what layers give that never left the device, each drawn anew when its turn comes."""
    hidden = inputs.hidden
    for each in layers(config, device):
        hidden = each(hidden, inputs.cos, inputs.sin)
    return hidden


def check(found: torch.Tensor, right: torch.Tensor) -> None:
    """Check a forward pass against layers that never left the device.

    The same kernels run on the same numbers, so that every bit must be right: a layer that begins before its last
    bytes are there is wrong in few of them.

    Raises
    ------
    AssertionError
        If a number is not finite, or another one than it should be.
    """
    assert bool(torch.isfinite(right).all()), "the layers give numbers that are not finite"
    wrong = int((found != right).sum())
    assert wrong == 0, f"{wrong} of {right.numel()} numbers are not those of layers that never left the GPU"


# --- work ------------------------------------------------------------------------------------------------

Forward = Callable[[llama.LlamaConfig, Inputs, str], Callable[[], torch.Tensor]]
"""Takes the shape, the inputs and a device, and returns a forward pass"""


def prepare_offloaded_forward(
    overlap: bool, config: llama.LlamaConfig, inputs: Inputs, device: str
) -> Callable[[], torch.Tensor]:
    """Return the forward pass whose layers come over the link, while others compute or not."""
    model = offload_layers(config, device)

    def forward() -> torch.Tensor:
        model.overlap = overlap
        return torch.as_tensor(model(inputs.hidden, inputs.cos, inputs.sin))

    return forward


def prepare_resident_forward(config: llama.LlamaConfig, inputs: Inputs, device: str) -> Callable[[], torch.Tensor]:
    """Return the forward pass of layers that are all in the device's memory."""
    resident = list(layers(config, device))

    def forward() -> torch.Tensor:
        hidden = inputs.hidden
        for each in resident:
            hidden = each(hidden, inputs.cos, inputs.sin)
        return hidden

    return forward


def forward_work(prepare: Forward, device: Device, keys: Keys, shape: llama.LlamaConfig | None = None) -> Work:
    """Run the layers once, from hidden states to hidden states; embedding and head stay out."""
    config, tokens = shape or config_of(), int(keys["tokens"])
    rates = {"throughput": Rate("token/s", tokens)}
    inputs = Inputs.draw(config, tokens, device.torch_device)
    forward = torch.no_grad()(prepare(config, inputs, device.torch_device))
    return Work(
        [forward], lambda: check(forward(), compute_expected(config, inputs, device.torch_device)), rates, timing="wall"
    )


def copy_work(device: Device, keys: Keys, shape: llama.LlamaConfig | None = None) -> Work:
    """Bring every layer and compute nothing: the bound of a pass that the link decides."""
    config = shape or config_of()
    model = offload_layers(config, device.torch_device)
    return Work(
        [model.copy_only],
        lambda: check_copies(model, config, device.torch_device),
        {"bandwidth": Rate("B/s", model.bytes)},
        timing="wall",
    )


def check_copies(model: OffloadedLayers, config: llama.LlamaConfig, device: str) -> None:
    """Check that after copying alone the last two layers, whose buffers nobody overwrites, are those drawn.

    Raises
    ------
    AssertionError
        If a weight of theirs is another one.
    """
    for buffer in model.buffers_on_device:
        buffer.zero_()
    model.copy_only()
    for index in range(max(0, config.layers - len(model.buffers_on_device)), config.layers):
        for found, right in zip(
            model.layers[index].parameters(), layer(config, index, device).parameters(), strict=True
        ):
            assert torch.equal(found, right), f"layer {index} did not arrive whole"


def config_of() -> llama.LlamaConfig:
    """Return the shape that is measured."""
    found = shapes.config(SHAPE)
    assert isinstance(found, llama.LlamaConfig)
    return found


def layer_bytes(config: llama.LlamaConfig) -> int:
    """Return the bytes of the weights of all layers in bf16."""
    rows = (config.heads + 2 * config.kv_heads) * config.head_dim
    attention = (rows + config.hidden) * config.hidden
    return ELEMENT_SIZE * config.layers * (attention + 3 * config.hidden * config.inner + 2 * config.hidden)


def bytes_needed(keys: Keys) -> float:
    """Return the device memory of a case, resident layers aside: two buffers, a layer drawn, and the activations."""
    config = config_of()
    inner = 2 * config.inner + 8 * config.hidden
    return 4 * layer_bytes(config) / config.layers + 2 * ELEMENT_SIZE * int(keys["tokens"]) * inner


def not_resident(device: Device, keys: Keys) -> str | None:
    """Return why the layers cannot all be in the device's memory, if they cannot."""
    return beyond_memory(layer_bytes(config_of()) + bytes_needed(keys), device)


BF16 = frozenset({"gpu", "bf16"})

OFFLOAD = Benchmark(
    name="offload",
    title="A 7B-shape forward pass whose layers come over the link",
    question="How close does a model whose layers come over the link get to what the link alone takes?",
    contenders={
        "overlapped": Contender(
            functools.partial(forward_work, functools.partial(prepare_offloaded_forward, True)),
            BF16,
        ),
        "one-after-the-other": Contender(
            functools.partial(forward_work, functools.partial(prepare_offloaded_forward, False)),
            BF16,
        ),
        "copy-only": Contender(copy_work, BF16),
        "resident": Contender(functools.partial(forward_work, prepare_resident_forward), BF16, not_resident),
    },
    cases=lambda device: [{"tokens": tokens} for tokens in TOKENS] if device.is_gpu else [],
    memory=bytes_needed,
    end=offload_layers.cache_clear,
)
