"""What adapters cost: parameters and operations. The memory of a step is :mod:`gpuguide.costs.memory`'s.

A product of a matrix of ``out`` by ``in`` with a vector takes 2 ``out in`` operations. Training all weights takes three
such products a token: forward, the gradient of the inputs, that of the weights. A frozen matrix saves the third.
"""

from __future__ import annotations

from gpuguide.errors import GpuguideError


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


def full_operations(inputs: int, outputs: int) -> int:
    """Return the operations a token of a matrix that is trained: forward and backward."""
    _check(inputs=inputs, outputs=outputs)
    return 6 * inputs * outputs


def adapted_operations(inputs: int, outputs: int, rank: int, *, input_gradient: bool = True) -> int:
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


def _check(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise GpuguideError(f"{name} is {size}; it must be at least 1.")
