"""The optimizer's step inside the backward pass: a gradient lives only until its weight is updated.

PyTorch calls a hook on each parameter once its gradient is complete. An optimizer of that one parameter steps there and
frees the gradient, so that gradients of all parameters never exist together. The norm of all gradients is then unknown,
so that they cannot be clipped by it, and gradients of several micro-batches cannot be accumulated.

Source: PyTorch, "How to save memory by fusing the optimizer step into the backward pass", 2023; K. Lv et al., "Full
Parameter Fine-tuning for Large Language Models with Limited Resources" (LOMO), 2023, section 3.1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from gpuguide.errors import GpuguideError

MakeOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
"""From the parameters of an optimizer to the optimizer"""


class StepInBackward:
    """Optimizers that step as soon as the gradient of their parameter is complete.

    Parameters
    ----------
    parameters : iterable of nn.Parameter
        What is trained; those that ask for no gradient are left out.
    make_optimizer : callable
        Makes the optimizer of a list of one parameter.

    Raises
    ------
    GpuguideError
        If no parameter asks for a gradient.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], make_optimizer: MakeOptimizer) -> None:
        trained = [each for each in parameters if each.requires_grad]
        if not trained:
            raise GpuguideError("No parameter asks for a gradient, so there is nothing to step.")
        self.optimizers = {each: make_optimizer([each]) for each in trained}
        self.handles: list[RemovableHandle] = [
            each.register_post_accumulate_grad_hook(self._step) for each in self.optimizers
        ]

    def _step(self, parameter: torch.Tensor) -> None:
        optimizer = self.optimizers[parameter]  # type: ignore[index]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def set_learning_rate(self, learning_rate: float) -> None:
        """Change the learning rate of all of them."""
        for optimizer in self.optimizers.values():
            for group in optimizer.param_groups:
                group["lr"] = learning_rate

    def remove(self) -> None:
        """Step no longer: the next backward pass leaves its gradients."""
        for handle in self.handles:
            handle.remove()
