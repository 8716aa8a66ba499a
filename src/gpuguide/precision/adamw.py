"""AdamW on bf16 weights, whose spacing exceeds most updates: three variants of storage.

Near 1, neighbouring numbers of bf16 lie 2^-7 apart. An update of 0.001 is less than half of that, so the sum is rounded
back to 1, however often it is added. Three variants store the weights:

* ``"nearest"``: round to the nearest. Small updates are lost; it is here to be seen failing.
* ``"master"``: the optimizer keeps the weights in fp32, adds updates there, and rounds a copy for the model. This takes
  4 bytes more a weight.
* ``"stochastic"``: round up or down at random, the more probably the nearer, so that an update of an eighth of a step
  moves the weight in one of eight cases. No byte more; some noise.

References
----------
I. Loshchilov and F. Hutter, "Decoupled Weight Decay Regularization", 2019, https://arxiv.org/abs/1711.05101, algorithm
2. S. Gupta et al., "Deep Learning with Limited Numerical Precision", 2015, https://arxiv.org/abs/1502.02551, section 3,
for stochastic rounding. P. Micikevicius et al., "Mixed Precision Training", 2018, https://arxiv.org/abs/1710.03740,
section 3.1, for the fp32 copy.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, get_args

import torch

from gpuguide.precision.formats import BF16

Storing = Literal["nearest", "master", "stochastic"]
DROPPED = 16
"""Bits of an fp32 number that bf16 lacks"""


def to_bf16_stochastically(x: torch.Tensor, generator: torch.Generator | None = None) -> torch.Tensor:
    """Round fp32 to bf16 up or down at random, so that the mean is right.

    bf16 is the upper half of fp32's bits. So a random number of 16 bits is added to the lower half, which carries into
    the upper one with the right probability, and the lower half is dropped. Numbers beyond the largest of bf16 become
    it; infinities and NaN stay.

    Parameters
    ----------
    x : torch.Tensor
        fp32, of any shape.
    generator : torch.Generator, optional
        Where the random bits come from, on the device of ``x``.

    Returns
    -------
    torch.Tensor
        The shape of ``x``, bf16.

    Raises
    ------
    TypeError
        If ``x`` is not in fp32.
    """
    if x.dtype != torch.float32:
        raise TypeError(f"Stochastic rounding to bf16 begins from torch.float32, not {x.dtype}; convert it first.")
    noise = torch.randint(2**DROPPED, x.shape, dtype=torch.int32, device=x.device, generator=generator)
    carried = ((x.detach().contiguous().view(torch.int32) + noise) & -(2**DROPPED)).view(torch.float32)
    return torch.where(x.isfinite(), carried.clamp(-BF16.largest, BF16.largest), x).to(torch.bfloat16)


class AdamW(torch.optim.Optimizer):
    """AdamW for weights in any format, which computes in fp32 and rounds once a step.

    Both moments are kept in fp32. With weights in fp32 all variants are the same, and the numbers are those of
    ``torch.optim.AdamW``.

    Parameters
    ----------
    params : iterable
        Parameters, or groups of them.
    lr, betas, eps, weight_decay
        As ``torch.optim.AdamW`` has them.
    storing : str
        How weights in bf16 keep small updates: ``"nearest"``, ``"master"`` or ``"stochastic"``.
    seed : int
        Of the random bits. They are drawn from a generator of each device, which does not disturb others; a saved
        state does not hold how far it has come.

    Raises
    ------
    ValueError
        If there is no such variant, or a number is out of range.
    """

    def __init__(
        self,
        params: Iterable[torch.Tensor] | Iterable[dict[str, Any]],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        *,
        storing: Storing = "master",
        seed: int = 0,
    ) -> None:
        if storing not in get_args(Storing):
            raise ValueError(f"storing is {storing!r}; the variants are {', '.join(get_args(Storing))}.")
        if lr < 0 or eps < 0 or weight_decay < 0 or not all(0 <= beta < 1 for beta in betas):
            raise ValueError(
                f"lr {lr}, eps {eps} and weight_decay {weight_decay} must be 0 or more, and betas {betas} "
                "from 0 to below 1."
            )
        self.storing, self.seed = storing, seed
        self.generators: dict[torch.device, torch.Generator] = {}
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Move all parameters that have a gradient.

        Raises
        ------
        ValueError
            If a closure is given: the loss is not computed again.
        """
        if closure is not None:
            raise ValueError("This AdamW takes no closure; compute the loss and go backward before step().")
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._move(parameter, group)

    def _move(self, parameter: torch.Tensor, group: dict[str, Any]) -> None:
        """Move one parameter: the algorithm in fp32, then rounded as it is stored."""
        state = self.state[parameter]
        if not state:
            state["step"] = 0
            state["exp_avg"] = torch.zeros_like(parameter, dtype=torch.float32)
            state["exp_avg_sq"] = torch.zeros_like(parameter, dtype=torch.float32)
            if self.storing == "master" and parameter.dtype != torch.float32:
                state["master"] = parameter.detach().float()
        state["step"] += 1
        weight = state["master"] if "master" in state else parameter.float()  # of fp32 that is the parameter itself
        _adamw(weight, parameter.grad.float(), state, group)  # type: ignore[union-attr]
        if weight is not parameter:
            parameter.copy_(self._round(weight, parameter.dtype))

    def _round(self, weight: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        if self.storing == "stochastic" and dtype == torch.bfloat16:
            return to_bf16_stochastically(weight, self._generator(weight.device))
        return weight.to(dtype)

    def _generator(self, device: torch.device) -> torch.Generator:
        if device not in self.generators:
            self.generators[device] = torch.Generator(device).manual_seed(self.seed)
        return self.generators[device]

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a state. PyTorch would turn what belongs to a bf16 parameter into bf16; here it stays fp32."""
        super().load_state_dict(state_dict)
        ours = [parameter for group in self.param_groups for parameter in group["params"]]
        theirs = [number for group in state_dict["param_groups"] for number in group["params"]]
        for parameter, number in zip(ours, theirs, strict=True):
            for name, value in state_dict["state"].get(number, {}).items():
                if isinstance(value, torch.Tensor):
                    self.state[parameter][name] = value.to(parameter.device, torch.float32, copy=True)


def _adamw(weight: torch.Tensor, gradient: torch.Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
    """Change weight and moments, all fp32, in place."""
    beta1, beta2 = group["betas"]
    weight.mul_(1 - group["lr"] * group["weight_decay"])
    state["exp_avg"].lerp_(gradient, 1 - beta1)
    state["exp_avg_sq"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    first = 1 - beta1 ** state["step"]
    second = 1 - beta2 ** state["step"]
    denominator = (state["exp_avg_sq"].sqrt() / second**0.5).add_(group["eps"])
    weight.addcdiv_(state["exp_avg"], denominator, value=-group["lr"] / first)
