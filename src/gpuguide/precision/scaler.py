"""A loss scaler written out: it moves the gradients of fp16 into the range that fp16 has.

Small gradients become zero in fp16. A loss multiplied by 65536 has gradients 65536 times as large, so they survive;
they are divided by the same number, in fp32, before they are used. The largest scale that does not make gradients
infinite is found by trying: after 2000 steps without an infinity the scale is doubled, and where a gradient is infinite
or NaN, the step is skipped and the scale is halved.

References
----------
P. Micikevicius et al., "Mixed Precision Training", 2018, https://arxiv.org/abs/1710.03740, sections 3.2 and 4. PyTorch,
``torch/amp/grad_scaler.py``, whose decisions and numbers these are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

READY, UNSCALED, STEPPED = "ready", "unscaled", "stepped"


class LossScaler:
    """Scale losses, and step only where all gradients are finite.

    In a training step its methods are called in this order: :meth:`scale` the loss of each micro-batch and go backward,
    :meth:`unscale_` once, clip, :meth:`step`, :meth:`update` once. All numbers are those of ``torch.amp.GradScaler``,
    and so is the content of :meth:`state_dict`. Two things differ. :meth:`step` returns whether a step was taken. And a
    scale that falls to zero is an error, while PyTorch continues and makes the weights NaN.

    Parameters
    ----------
    scale : float
        What losses are multiplied by at first.
    growth_factor, backoff_factor : float
        What the scale is multiplied by after ``growth_interval`` clean steps in a row, and after a skipped one.
    growth_interval : int
        Clean steps in a row before the scale grows.
    enabled : bool
        Whether to scale at all. Otherwise losses and gradients stay as they are and every step is taken, so that one
        training step serves all formats: bf16 and fp32 need no scale.

    Raises
    ------
    ValueError
        If the scale is not a positive, finite number in fp32, or a factor or the interval makes no sense.
    """

    def __init__(
        self,
        scale: float = 2.0**16,
        *,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        if not growth_factor > 1:
            raise ValueError(f"growth_factor is {growth_factor!r}; it must be above 1.")
        if not 0 < backoff_factor < 1:
            raise ValueError(f"backoff_factor is {backoff_factor!r}; it must lie between 0 and 1.")
        if growth_interval < 1:
            raise ValueError(f"growth_interval is {growth_interval!r}; it must be 1 or more.")
        self.enabled = enabled
        self.growth_factor, self.backoff_factor, self.growth_interval = growth_factor, backoff_factor, growth_interval
        self._scale = _positive(scale)
        self.clean_steps = 0
        """Steps in a row without an infinity, since the scale last changed"""
        self._stage: dict[int, str] = {}
        self._found: dict[int, bool] = {}

    @property
    def current(self) -> float:
        """The scale; 1 where scaling is switched off."""
        return self._scale if self.enabled else 1.0

    @current.setter
    def current(self, scale: float) -> None:
        self._scale = _positive(scale)

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """Return the loss times the scale, to go backward from."""
        return loss * torch.tensor(self._scale, device=loss.device) if self.enabled else loss

    @torch.no_grad()
    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        """Divide the gradients of an optimizer's parameters by the scale, and note whether all are finite.

        Parameters without a gradient are passed over.

        Raises
        ------
        RuntimeError
            If they were divided before, since the last :meth:`update`, or no parameter has a gradient.
        ValueError
            If a gradient is stored in fp16: divided, it would underflow again.
        """
        if not self.enabled:
            return
        stage = self._stage.get(id(optimizer), READY)
        if stage != READY:
            after = "step()" if stage == STEPPED else "unscale_()"
            raise RuntimeError(
                f"unscale_() follows {after} of the same optimizer; once before each update() is enough."
            )
        gradients = list(_gradients(optimizer))
        if not gradients:
            raise RuntimeError("No parameter of the optimizer has a gradient; call scale(loss).backward() first.")
        # An infinite or NaN value makes the largest magnitude so. With foreach, a few kernels read all gradients.
        largest = torch._foreach_norm([gradient for gradient in gradients if gradient.numel()], float("inf"))
        finite = torch.stack([each.float().to(gradients[0].device) for each in largest]).isfinite().all()
        for device in {gradient.device for gradient in gradients}:
            there = [gradient for gradient in gradients if gradient.device == device]
            torch._foreach_mul_(there, torch.tensor(_fp32(1.0 / self._scale), device=device))
        self._found[id(optimizer)] = not bool(finite)  # here the host waits for the device
        self._stage[id(optimizer)] = UNSCALED

    def step(self, optimizer: torch.optim.Optimizer) -> bool:
        """Take the optimizer's step, unless one of its gradients is infinite or NaN.

        Unscales the gradients first if they are not unscaled yet.

        Returns
        -------
        bool
            Whether the step was taken. A learning-rate schedule advances only then.

        Raises
        ------
        RuntimeError
            If a step was taken before, since the last :meth:`update`.
        """
        if self.enabled:
            if self._stage.get(id(optimizer)) == STEPPED:
                raise RuntimeError("step() was called twice with the same optimizer; call update() after each step.")
            if self._stage.get(id(optimizer)) != UNSCALED:
                self.unscale_(optimizer)
            self._stage[id(optimizer)] = STEPPED
            if self._found[id(optimizer)]:
                return False
        optimizer.step()
        return True

    def update(self) -> None:
        """Shrink the scale if a gradient was not finite; else count a clean step, and grow after enough of them.

        Raises
        ------
        RuntimeError
            If no gradients were checked since the last update, or the scale falls to zero.
        """
        if not self.enabled:
            return
        if not self._found:
            raise RuntimeError("update() found no checked gradients; call unscale_() or step() before it.")
        if any(self._found.values()):
            self._scale = _fp32(self._scale * self.backoff_factor)
            self.clean_steps = 0
        else:
            self.clean_steps += 1
            if self.clean_steps == self.growth_interval:
                grown = _fp32(self._scale * self.growth_factor)
                self._scale = grown if math.isfinite(grown) else self._scale
                self.clean_steps = 0
        self._stage.clear()
        self._found.clear()
        if self._scale == 0:
            raise RuntimeError(
                "The scale fell to zero: gradients are infinite or NaN whatever the scale. "
                "Find the operation that makes them with gpuguide.precision.trace_nonfinite."
            )

    def state_dict(self) -> dict[str, Any]:
        """Return what must be kept to go on later; empty where scaling is switched off. ``GradScaler`` reads it too."""
        if not self.enabled:
            return {}
        return {
            "scale": self._scale,
            "growth_factor": self.growth_factor,
            "backoff_factor": self.backoff_factor,
            "growth_interval": self.growth_interval,
            "_growth_tracker": self.clean_steps,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state of this class or of ``torch.amp.GradScaler``.

        Raises
        ------
        ValueError
            If the state is empty, as that of a scaler that was switched off, or its scale is not positive.
        """
        if not self.enabled:
            return
        if not state:
            raise ValueError("The state is empty; it was saved by a scaler that was switched off.")
        self._scale = _positive(state["scale"])
        self.growth_factor, self.backoff_factor = state["growth_factor"], state["backoff_factor"]
        self.growth_interval, self.clean_steps = state["growth_interval"], state["_growth_tracker"]


def _gradients(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    """Yield the values of all gradients that there are; of a sparse one, those that are stored."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            gradient = parameter.grad
            if gradient is None:
                continue
            if gradient.dtype == torch.float16:
                raise ValueError(
                    "A gradient is stored in fp16; keep weights in fp32 and let autocast make fp16 copies."
                )
            yield gradient._values() if gradient.is_sparse else gradient


def _fp32(value: float) -> float:
    """Return a number as fp32 holds it; the scale is one on the device."""
    return float(torch.tensor(value, dtype=torch.float32))


def _positive(scale: float) -> float:
    held = _fp32(scale)
    if not 0 < held < math.inf:
        raise ValueError(f"The scale is {scale!r}; it must be a positive, finite number in fp32, such as 2.0**16.")
    return held
