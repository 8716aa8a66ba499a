"""Cost model of adapters and of training all weights: parameters, operations, and memory of trained parameters.

A product of a matrix of ``out`` by ``in`` with a vector takes 2 ``out in`` operations. Training all weights takes three
such matmuls a token: forward, the gradient of the inputs, that of the weights. A frozen matrix saves the third, so a
step with adapters can at best take two thirds of the time. What it saves in memory is gradients and the optimizer's
state; activations stay. The memory of a whole step is :mod:`gpuguide.costs.memory`'s.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpuguide.errors import GpuguideError

Matrices = Sequence[tuple[int, int]]
"""Inputs and outputs of each matrix"""
OPTIMIZER_BYTES = 8
"""A parameter's two moments of AdamW in fp32"""


def adapter_parameters(inputs: int, outputs: int, rank: int) -> int:
    """Return the parameters of an adapter: ``rank`` for each input and output.

    >>> adapter_parameters(768, 2304, 16)
    49152

    Raises
    ------
    GpuguideError
        If a size is below 1.
    """
    _check(inputs=inputs, outputs=outputs, rank=rank)
    return rank * (inputs + outputs)


def trainable_share(adapted: Matrices, rank: int, parameters: int) -> float:
    """Return which share of a model's parameters is trained, as PEFT prints it: adapters count among all.

    Parameters
    ----------
    adapted : sequence of (int, int)
        Inputs and outputs of each matrix that gets an adapter.
    rank : int
        Of all adapters.
    parameters : int
        Of the base, tied ones counted once.

    Raises
    ------
    GpuguideError
        If a size is below 1.

    Examples
    --------
    GPT-2 small at rank 16, with adapters beside ``c_attn`` and both layers that are called ``c_proj``:

    >>> layer = [(768, 2304), (768, 768), (3072, 768)]
    >>> round(100 * trainable_share(12 * layer, 16, 124_439_808), 2)
    1.29
    """
    _check(parameters=parameters)
    trained = sum(adapter_parameters(inputs, outputs, rank) for inputs, outputs in adapted)
    return trained / (trained + parameters)


def full_operations(inputs: int, outputs: int) -> int:
    """Return the operations a token of a matrix that is trained: forward and backward."""
    _check(inputs=inputs, outputs=outputs)
    return 6 * inputs * outputs


def base_operations(inputs: int, outputs: int) -> int:
    """Return the operations a token of a frozen matrix without an adapter: forward, and the gradient of the inputs."""
    _check(inputs=inputs, outputs=outputs)
    return 4 * inputs * outputs


def lora_operations(inputs: int, outputs: int, rank: int, *, input_gradient: bool = True) -> int:
    """Return the operations a token of a frozen matrix with an adapter: forward and backward.

    Parameters
    ----------
    inputs, outputs, rank : int
        Sizes of the matrix, and of its adapter.
    input_gradient : bool
        Whether anything before the layer is trained. If not, the gradient of the inputs is not computed.

    Raises
    ------
    GpuguideError
        If a size is below 1.
    """
    thin = adapter_parameters(inputs, outputs, rank)
    backward = 2 * inputs * outputs + 2 * rank * inputs if input_gradient else 0
    return 2 * inputs * outputs + 2 * thin + backward + 2 * thin + 2 * rank * outputs


def step_operations(adapted: Matrices, others: Matrices, rank: int) -> int:
    """Return the operations a token of a step with adapters; attention's own are left out.

    Parameters
    ----------
    adapted, others : sequence of (int, int)
        Matrices with an adapter and without, the head among the latter.
    rank : int
        Of all adapters.
    """
    with_adapters = sum(lora_operations(inputs, outputs, rank) for inputs, outputs in adapted)
    return with_adapters + sum(base_operations(inputs, outputs) for inputs, outputs in others)


def attention_operations(length: int, width: int) -> int:
    """Return the operations of one layer's causal attention on a sequence: forward and backward.

    Queries times keys and weights times values are two matmuls, of which a causal mask leaves half. The backward pass
    takes twice as many operations as the forward pass.

    Parameters
    ----------
    length : int
        Tokens of the sequence.
    width : int
        Sizes of all query heads together.
    """
    _check(length=length, width=width)
    forward = 2 * 2 * length * length * width // 2
    return 3 * forward


def training_bytes(frozen: int, trained: int, *, frozen_bits: float = 16.0, trained_bytes: int = 4) -> float:
    """Return the bytes of weights, gradients and AdamW's state, without activations.

    Parameters
    ----------
    frozen, trained : int
        Parameters of each kind.
    frozen_bits : float
        Of a frozen weight: 4.13 in NF4, scales included.
    trained_bytes : int
        Of a trained weight with its copy in fp32, if it has one: 4, or 6 for bf16 with a copy. Its gradient takes
        4 bytes, and 2 more where the copy has one of its own.

    Raises
    ------
    GpuguideError
        If a number is below 0, or nothing is trained.
    """
    if frozen < 0 or frozen_bits <= 0 or trained_bytes <= 0:
        raise GpuguideError("Sizes and bytes must be positive.")
    _check(trained=trained)
    return frozen * frozen_bits / 8 + trained * (2 * trained_bytes + OPTIMIZER_BYTES)


def _check(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise GpuguideError(f"{name} is {size}; it must be at least 1.")
