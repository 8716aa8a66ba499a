"""AdamW for parameters in 16 bits whose copies in fp32 it trains, in one pass over memory.

The kernel is :mod:`gpuguide.training.adamw_kernel`. Its state has the names of ``torch.optim.AdamW``'s, so that a run
may go on with the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from gpuguide import triton_support

EPSILON = 1e-8


class OnePassAdamW(torch.optim.Optimizer):
    """AdamW that reads 16-bit gradients, and writes fp32 master weights and their 16-bit parameters.

    Parameters
    ----------
    groups : sequence of dict
        As of ``torch.optim.AdamW``: ``params`` are the copies in fp32, with ``weight_decay`` where it differs.
    narrow : dict
        From the ``id`` of a copy to its parameter in 16 bits.
    lr : torch.Tensor
        Learning rate, a scalar in fp32 on the device.
    betas : (float, float)
        Decay of the averages of gradients, and of their squares.
    weight_decay : float
        Weight decay.
    """

    def __init__(
        self,
        groups: Sequence[dict[str, Any]],
        narrow: dict[int, nn.Parameter],
        lr: torch.Tensor,
        betas: tuple[float, float],
        weight_decay: float,
    ) -> None:
        super().__init__(list(groups), {"lr": lr, "betas": betas, "weight_decay": weight_decay})
        self.narrow = narrow
        self.factor = torch.ones((), device=lr.device)
        """By which gradients are multiplied, to clip them"""
        self.count = torch.zeros((), device=lr.device)
        """Steps so far"""
        for master in (each for group in self.param_groups for each in group["params"]):
            averages = {name: torch.zeros_like(master.detach()) for name in ("exp_avg", "exp_avg_sq")}
            self.state[master] = {"step": self.count, **averages}

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Take a step with the gradients of the parameters, or of the copies where these have them."""
        self.count += 1
        for group in self.param_groups:
            for master in group["params"]:
                self._step_one(master, group)

    def gradient_of(self, master: torch.Tensor) -> torch.Tensor:
        """Return the gradient of a copy: its own, where micro-batches were added up, or the parameter's."""
        found = master.grad if master.grad is not None else self.narrow[id(master)].grad
        assert found is not None, "a parameter has no gradient"
        return found

    def _step_one(self, master: torch.Tensor, group: dict[str, Any]) -> None:
        state, parameter, gradient = self.state[master], self.narrow[id(master)], self.gradient_of(master)
        beta1, beta2 = group["betas"]
        if triton_support.supports_triton(master):
            from gpuguide.training.adamw_kernel import adamw_

            adamw_(
                master,
                parameter,
                gradient.contiguous(),
                state["exp_avg"],
                state["exp_avg_sq"],
                group["lr"],
                self.count,
                self.factor,
                log2_betas=(math.log2(beta1), math.log2(beta2)),
                betas=(beta1, beta2),
                epsilon=EPSILON,
                weight_decay=group["weight_decay"],
            )
            return
        g = gradient.float() * self.factor
        m = state["exp_avg"].lerp_(g, 1 - beta1)
        v = state["exp_avg_sq"].lerp_(g.square(), 1 - beta2)
        m_hat, v_hat = m / (1 - beta1**self.count), v / (1 - beta2**self.count)
        master -= group["lr"] * group["weight_decay"] * master
        master -= group["lr"] * m_hat / (v_hat.sqrt() + EPSILON)
        parameter.copy_(master)
