"""The optimizer's step inside the backward pass, so that a gradient exists only until its parameter is updated.

PyTorch calls a hook on each parameter once its gradient is complete. An optimizer of that one parameter steps there and
frees the gradient, so the gradients of all parameters never exist together. Gradients cannot be clipped by their common
norm, which is unknown, and cannot be accumulated over several micro-batches.

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
"""Makes the optimizer of a list of parameters"""


class StepInBackward:
    """Optimizers that step as soon as the gradient of their parameter is complete.

    Parameters
    ----------
    parameters : iterable of nn.Parameter
        Those that are trained. Parameters that require no gradient are left out.
    make_optimizer : callable
        Makes the optimizer of a list of one parameter.

    Raises
    ------
    GpuguideError
        If no parameter requires a gradient.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], make_optimizer: MakeOptimizer) -> None:
        self.make_optimizer = make_optimizer
        self.optimizers: dict[torch.Tensor, torch.optim.Optimizer] = {}
        self.handles: list[RemovableHandle] = []
        self.add(parameters)
        if not self.optimizers:
            raise GpuguideError("No parameter requires a gradient; call requires_grad_() on those that are trained.")

    def add(self, parameters: Iterable[nn.Parameter]) -> None:
        """Train further parameters, such as those of a layer that was frozen; one that is trained already stays."""
        for parameter in parameters:
            if parameter.requires_grad and parameter not in self.optimizers:
                self.optimizers[parameter] = self.make_optimizer([parameter])
                self.handles.append(parameter.register_post_accumulate_grad_hook(self._step))

    def _step(self, parameter: torch.Tensor) -> None:
        optimizer = self.optimizers[parameter]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def set_learning_rate(self, learning_rate: float) -> None:
        """Change the learning rate of all parameters, in place where it is a tensor."""
        for optimizer in self.optimizers.values():
            for group in optimizer.param_groups:
                if isinstance(group["lr"], torch.Tensor):
                    group["lr"].fill_(learning_rate)
                else:
                    group["lr"] = learning_rate

    def remove(self) -> None:
        """Remove the hooks, so that the next backward pass leaves its gradients."""
        for handle in self.handles:
            handle.remove()
