"""AdamW with states in 8 bits, which takes 10 bytes of memory traffic a weight in bf16, where fp32 takes 28.

Each 256 numbers of a state share a scale, the largest of them.

* The first moment ``m`` is stored as the signed square root of its share of the scale, in an ``int8``: small shares get
  more of the 255 steps than large ones.
* The second moment ``v`` divides the update, so a share that is rounded to zero makes the update a thousand times too
  large. It is stored as its fourth root, rounded *up*, in a ``uint8``: a share is never too small, and the smallest is
  ``255**-4``. The square root, rounded to the nearest, is here to be seen failing (``"square-root-nearest"``).
* Weights in bf16 are rounded up or down at random, as most updates are smaller than their spacing.

On a GPU all of it is one kernel for all parameters, :mod:`gpuguide.training_memory.eight_bit_kernels`.

References
----------
T. Dettmers et al., "8-bit Optimizers via Block-wise Quantization", 2021, sections 2 and 3: a scale for each block.
I. Loshchilov and F. Hutter, "Decoupled Weight Decay Regularization", 2019, algorithm 2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal, get_args

import torch
from torch.nn import functional

from gpuguide import triton_support
from gpuguide.errors import GpuguideError, unknown
from gpuguide.precision.adamw import to_bf16_stochastically

GROUP = 256
"""Numbers that share a scale"""
FIRST_STEPS, SECOND_STEPS = 127, 255
Rounding = Literal["fourth-root-up", "square-root-nearest"]


# --- packing -----------------------------------------------------------------------------------------------------


def pack_first(m: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a first moment, ``(groups, 256)`` in fp32, as ``int8`` of that shape and a scale a group."""
    scale = m.abs().amax(1)
    share = m / torch.where(scale > 0, scale, 1.0)[:, None]
    return (share.abs().sqrt() * FIRST_STEPS).round().mul(share.sign()).to(torch.int8), scale


def unpack_first(codes: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Return what :func:`pack_first` packed, to within rounding."""
    root = codes.float() / FIRST_STEPS
    return root * root.abs() * scale[:, None]


def pack_second(v: torch.Tensor, rounding: Rounding = "fourth-root-up") -> tuple[torch.Tensor, torch.Tensor]:
    """Return a second moment, ``(groups, 256)`` in fp32, as ``uint8`` of that shape and a scale a group."""
    scale = v.amax(1)
    root = (v / torch.where(scale > 0, scale, 1.0)[:, None]).sqrt()
    if rounding == "square-root-nearest":
        return (root * SECOND_STEPS).round().to(torch.uint8), scale
    return (root.sqrt() * SECOND_STEPS).ceil().clamp(max=SECOND_STEPS).to(torch.uint8), scale


def unpack_second(codes: torch.Tensor, scale: torch.Tensor, rounding: Rounding = "fourth-root-up") -> torch.Tensor:
    """Return what :func:`pack_second` packed: never less, if it was rounded up."""
    root = codes.float() / SECOND_STEPS
    power = 2 if rounding == "square-root-nearest" else 4
    return root**power * scale[:, None]


# --- the optimizer -----------------------------------------------------------------------------------------------


class AdamW8bit(torch.optim.Optimizer):
    """AdamW whose two states take a byte a number each.

    Parameters
    ----------
    params : iterable
        Parameters in bf16 or fp32, or groups of them, on one device.
    lr, betas, eps, weight_decay
        As ``torch.optim.AdamW`` has them; ``weight_decay`` may differ between groups, and the learning rate may change.
    rounding : str
        How the second moment is stored. ``"square-root-nearest"`` diverges, and is computed by PyTorch only.

    Raises
    ------
    GpuguideError
        If a parameter has another format, parameters are on several devices, or there is no rounding of the name.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        rounding: Rounding = "fourth-root-up",
    ) -> None:
        if rounding not in get_args(Rounding):
            raise unknown("rounding", rounding, get_args(Rounding))
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})
        self.rounding = rounding
        every = [(each, group) for group in self.param_groups for each in group["params"]]
        self.parameters: list[torch.Tensor] = [each for each, _ in every]
        self.groups = [group for _, group in every]
        devices = {each.device for each in self.parameters}
        wrong = {each.dtype for each in self.parameters} - {torch.bfloat16, torch.float32}
        if wrong or len(devices) > 1:
            what = (
                f"{', '.join(map(str, wrong))}; use bf16 or fp32"
                if wrong
                else "on several devices; use one optimizer each"
            )
            raise GpuguideError(f"AdamW8bit was given parameters in or on: {what}.")
        (device,) = devices
        starts, total = [], 0
        for each in self.parameters:
            starts.append(total)
            total += -(-each.numel() // GROUP) * GROUP
        self.starts = starts
        """Where the states of each parameter begin: a parameter fills its last group up"""
        self.m = torch.zeros(total, dtype=torch.int8, device=device)
        self.v = torch.zeros(total, dtype=torch.uint8, device=device)
        self.m_scale, self.v_scale = (torch.zeros(total // GROUP, device=device) for _ in range(2))
        self.count = torch.zeros((), device=device)
        """Steps so far"""
        self._kernel: Any = None

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update all parameters that have a gradient."""
        self.count += 1
        if triton_support.supports_triton(self.m) and self.rounding == "fourth-root-up":
            from gpuguide.training_memory.eight_bit_kernels import AllParameters

            self._kernel = self._kernel or AllParameters(self)
            self._kernel.step()
            return
        for parameter, group, start in zip(self.parameters, self.groups, self.starts, strict=True):
            if parameter.grad is not None:
                self._step_one(parameter, parameter.grad, group, start)

    def _step_one(self, parameter: torch.Tensor, gradient: torch.Tensor, group: dict[str, Any], start: int) -> None:
        """Do for one parameter what the kernel does for all."""
        size = parameter.numel()
        padded = -(-size // GROUP) * GROUP
        here, groups = slice(start, start + padded), slice(start // GROUP, (start + padded) // GROUP)
        g = functional.pad(gradient.float().flatten(), (0, padded - size)).view(-1, GROUP)
        m = unpack_first(self.m[here].view(-1, GROUP), self.m_scale[groups])
        v = unpack_second(self.v[here].view(-1, GROUP), self.v_scale[groups], self.rounding)
        beta1, beta2 = group["betas"]
        m.lerp_(g, 1 - beta1)
        v.lerp_(g.square(), 1 - beta2)
        m_hat, v_hat = (each.flatten()[:size].view_as(parameter) for each in (m, v))
        m_hat, v_hat = m_hat / (1 - beta1**self.count), v_hat / (1 - beta2**self.count)
        w = parameter.float() * (1 - group["lr"] * group["weight_decay"])
        w -= group["lr"] * m_hat / (v_hat.sqrt() + group["eps"])
        parameter.copy_(to_bf16_stochastically(w) if parameter.dtype == torch.bfloat16 else w)
        for codes, scales, (packed, scale) in (
            (self.m, self.m_scale, pack_first(m)),
            (self.v, self.v_scale, pack_second(v, self.rounding)),
        ):
            codes[here], scales[groups] = packed.flatten(), scale

    def state_dict(self) -> dict[str, Any]:
        """Return the states of all parameters together, and the settings of their groups."""
        names = ("m", "v", "m_scale", "v_scale", "count")
        return {
            "state": {name: getattr(self, name) for name in names},
            "param_groups": super().state_dict()["param_groups"],
        }

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from what :meth:`state_dict` gave, with the same parameters in the same order."""
        for name, values in state_dict["state"].items():
            getattr(self, name).copy_(values)
        for group, saved in zip(self.param_groups, state_dict["param_groups"], strict=True):
            group.update({name: value for name, value in saved.items() if name != "params"})
