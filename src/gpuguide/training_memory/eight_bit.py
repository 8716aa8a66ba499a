"""AdamW with states in 8 bits, which moves 10 bytes a parameter in bf16, where fp32 states and parameters move 28.

Each 256 numbers of a state share a scale, the largest absolute value among them.

* The first moment ``m`` is divided by its scale and stored as a signed square root in an ``int8``, so that small
  quotients get more of the 255 codes than large ones.
* The second moment ``v`` divides the update, so a quotient that is rounded to zero makes the update a thousand times
  too large. It is stored as its fourth root, rounded *up*, in a ``uint8``. A stored value is never too small, and the
  smallest quotient is ``255**-4``. The square root, rounded to the nearest, is here to show how that fails
  (``"square-root-nearest"``).
* Parameters in bf16 are rounded stochastically, because most updates are smaller than their spacing.

On a GPU one kernel updates all parameters of a format, see :mod:`gpuguide.training_memory.eight_bit_kernels`.

References
----------
T. Dettmers et al., "8-bit Optimizers via Block-wise Quantization", 2021, sections 2 and 3: a scale for each block.
I. Loshchilov and F. Hutter, "Decoupled Weight Decay Regularization", 2019, algorithm 2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, get_args

import torch
from torch.nn import functional
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from gpuguide import triton_support
from gpuguide.errors import GpuguideError, unknown
from gpuguide.precision.adamw import to_bf16_stochastically
from gpuguide.training_memory.eight_bit_layout import FORMATS, GROUP, is_capturing, is_on

FIRST_STEPS, SECOND_STEPS = 127, 255
STATES = ("m", "v", "m_scale", "v_scale", "count")
"""Names of the tensors that :meth:`AdamW8bit.state_dict` holds"""
Rounding = Literal["fourth-root-up", "square-root-nearest"]


# --- packing -----------------------------------------------------------------------------------------------------


def pack_first(m: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the codes (``int8``) and the scale of each row of a first moment, ``(rows, 256)`` in fp32."""
    scale = m.abs().amax(1)
    quotient = m / torch.where(scale > 0, scale, 1.0)[:, None]
    return (quotient.abs().sqrt() * FIRST_STEPS).round().mul(quotient.sign()).to(torch.int8), scale


def unpack_first(codes: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Return the first moment that :func:`pack_first` stored, to within its rounding."""
    root = codes.float() / FIRST_STEPS
    return root * root.abs() * scale[:, None]


def pack_second(v: torch.Tensor, rounding: Rounding = "fourth-root-up") -> tuple[torch.Tensor, torch.Tensor]:
    """Return the codes (``uint8``) and the scale of each row of a second moment, ``(rows, 256)`` in fp32."""
    scale = v.amax(1)
    root = (v / torch.where(scale > 0, scale, 1.0)[:, None]).sqrt()
    if rounding == "square-root-nearest":
        return (root * SECOND_STEPS).round().to(torch.uint8), scale
    return (root.sqrt() * SECOND_STEPS).ceil().clamp(max=SECOND_STEPS).to(torch.uint8), scale


def unpack_second(codes: torch.Tensor, scale: torch.Tensor, rounding: Rounding = "fourth-root-up") -> torch.Tensor:
    """Return the second moment that :func:`pack_second` stored, never less than it if it was rounded up."""
    root = codes.float() / SECOND_STEPS
    power = 2 if rounding == "square-root-nearest" else 4
    return root**power * scale[:, None]


# --- the optimizer -----------------------------------------------------------------------------------------------


class AdamW8bit(torch.optim.Optimizer):
    """AdamW whose two states take a byte a number each.

    Parameters
    ----------
    params : iterable
        Parameters in bf16 or fp32, or groups of them, on one device. Gradients may have any floating-point format.
    lr : float or torch.Tensor
        Learning rate. A captured CUDA graph needs a tensor on the device, from which each replay reads it.
    betas, eps, weight_decay
        As ``torch.optim.AdamW`` has them. Each group has its own, which may change between steps. A captured graph
        keeps those of the capture.
    rounding : str
        How the second moment is stored. ``"square-root-nearest"`` diverges, and is computed by PyTorch only.

    Raises
    ------
    GpuguideError
        If a parameter has another format or is no plain tensor, parameters are on several devices, a setting is out of
        its range, or there is no rounding of the name. :meth:`step` raises it for a sparse gradient, and while a graph
        is captured if a replay could not find the learning rate or the gradients.

    Notes
    -----
    A graph reads gradients at the addresses of the capture. Take a step before the capture and keep the gradients by
    ``zero_grad(set_to_none=False)``, so that the backward pass in the graph adds to the same memory.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | torch.Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        rounding: Rounding = "fourth-root-up",
    ) -> None:
        if rounding not in get_args(Rounding):
            raise unknown("rounding", rounding, get_args(Rounding))
        self.rounding = rounding
        self.parameters: list[torch.Tensor] = []
        self.groups: list[dict[str, Any]] = []
        """The group of each parameter"""
        self.starts: list[int] = []
        """Index of the first state of each parameter, a multiple of :data:`GROUP`"""
        self.m, self.v = torch.zeros(0, dtype=torch.int8), torch.zeros(0, dtype=torch.uint8)
        self.m_scale, self.v_scale = torch.zeros(0), torch.zeros(0)
        self.count = torch.zeros(0)
        """Steps that each parameter has taken"""
        self._kernel: Any = None
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters, whose states and steps begin at zero."""
        super().add_param_group(param_group)
        try:
            self._add_states(self.param_groups[-1])
        except GpuguideError:
            self.param_groups.pop()
            raise

    def _add_states(self, group: dict[str, Any]) -> None:
        """Append states for the parameters of a group."""
        parameters = group["params"]
        check_settings(group)
        check_parameters([*self.parameters, *parameters])
        if self._kernel is not None and self._kernel.captured:
            raise GpuguideError("A captured CUDA graph uses the optimizer's states; add parameters before the capture.")
        device = parameters[0].device if parameters else self.m.device
        total = len(self.m)
        for parameter in parameters:
            self.parameters.append(parameter)
            self.groups.append(group)
            self.starts.append(total)
            total += _padded(parameter.numel())
        sizes = {"m": total, "v": total, "m_scale": total // GROUP, "v_scale": total // GROUP}
        for name, size in {**sizes, "count": len(self.parameters)}.items():
            old = getattr(self, name).to(device)
            setattr(self, name, torch.cat([old, old.new_zeros(size - len(old))]))
        self._kernel = None

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update all parameters that have a gradient; return the result of ``closure``, which is called first."""
        result = None
        if closure is not None:
            with torch.enable_grad():
                result = closure()
        self._check_step()
        by_kernel = self._step_by_kernel() if self._supports_kernel() else set[int]()
        for number, parameter in enumerate(self.parameters):
            if parameter.grad is not None and number not in by_kernel:
                self._step_one(number)
        return result

    def _supports_kernel(self) -> bool:
        return self.rounding == "fourth-root-up" and triton_support.supports_triton(self.m)

    def _check_step(self) -> None:
        """Raise an error if a gradient is sparse, or a captured graph could not follow the learning rate."""
        for parameter in self.parameters:
            if parameter.grad is not None and parameter.grad.layout != torch.strided:
                raise GpuguideError(
                    f"The gradient of a parameter of shape {tuple(parameter.shape)} is sparse; "
                    "use torch.optim.SparseAdam, or sparse=False in nn.Embedding."
                )
        if is_capturing(self.m):
            for group in self.param_groups:
                if not is_on(group["lr"], self.m.device):
                    raise GpuguideError(
                        f"A CUDA graph is captured with the learning rate {group['lr']}, which its replays could not "
                        f"change. Give AdamW8bit lr=torch.tensor({float(group['lr'])}, device={str(self.m.device)!r})."
                    )

    def _step_by_kernel(self) -> set[int]:
        """Launch the kernels, and return the indices of the parameters that they update."""
        from gpuguide.training_memory.eight_bit_kernels import KernelLaunch

        self._kernel = self._kernel or KernelLaunch(self)
        updated: set[int] = self._kernel.step()
        return updated

    def _step_one(self, number: int) -> None:
        """Do for one parameter what the kernel does for all."""
        parameter, group, start = self.parameters[number], self.groups[number], self.starts[number]
        gradient = parameter.grad
        assert gradient is not None
        self.count[number] += 1
        count, size = self.count[number], parameter.numel()
        end = start + _padded(size)
        states, scales = slice(start, end), slice(start // GROUP, end // GROUP)
        g = functional.pad(gradient.float().flatten(), (0, end - start - size)).view(-1, GROUP)
        m = unpack_first(self.m[states].view(-1, GROUP), self.m_scale[scales])
        v = unpack_second(self.v[states].view(-1, GROUP), self.v_scale[scales], self.rounding)
        beta1, beta2 = group["betas"]
        m.lerp_(g, 1 - beta1)
        v.lerp_(g.square(), 1 - beta2)
        m_hat, v_hat = (moment.flatten()[:size].view(parameter.shape) for moment in (m, v))
        m_hat, v_hat = m_hat / (1 - beta1**count), v_hat / (1 - beta2**count)
        w = parameter.float() * (1 - group["lr"] * group["weight_decay"])
        w -= group["lr"] * m_hat / (v_hat.sqrt() + group["eps"])
        parameter.copy_(to_bf16_stochastically(w) if parameter.dtype == torch.bfloat16 else w)
        m_codes, self.m_scale[scales] = pack_first(m)
        v_codes, self.v_scale[scales] = pack_second(v, self.rounding)
        self.m[states], self.v[states] = m_codes.flatten(), v_codes.flatten()

    def state_dict(self) -> dict[str, Any]:
        """Return the states of all parameters together, and the settings of their groups."""
        return {
            "state": {name: getattr(self, name) for name in STATES},
            "param_groups": super().state_dict()["param_groups"],
        }

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a :meth:`state_dict` of the same parameters in the same order and groups.

        Raises
        ------
        GpuguideError
            If the groups or the sizes of the states differ.
        """
        states, groups = state_dict["state"], state_dict["param_groups"]
        ours = [len(group["params"]) for group in self.param_groups]
        theirs = [len(group["params"]) for group in groups]
        if ours != theirs or any(states[name].shape != getattr(self, name).shape for name in STATES):
            raise GpuguideError(
                f"The saved optimizer has {theirs} parameters in its groups and {states['m'].numel()} states, and this "
                f"one {ours} and {self.m.numel()}. Make it with the parameters of the saved one, in the same order."
            )
        for name in STATES:
            getattr(self, name).copy_(states[name])
        for group, saved in zip(self.param_groups, groups, strict=True):
            for name, value in saved.items():
                if name == "lr" and isinstance(group["lr"], torch.Tensor):
                    group["lr"].fill_(float(value))  # a captured graph reads this tensor
                elif name != "params":
                    group[name] = value


def _padded(size: int) -> int:
    """Return how many states a parameter has, which fills its last group up."""
    return -(-size // GROUP) * GROUP


def check_settings(group: dict[str, Any]) -> None:
    """Raise a :class:`~gpuguide.errors.GpuguideError` if a setting of a group is out of its range."""
    for name in ("lr", "eps", "weight_decay"):
        if not isinstance(group[name], torch.Tensor) and group[name] < 0:
            raise GpuguideError(f"{name} is {group[name]}; give AdamW8bit 0 or more.")
    if not all(0 <= beta < 1 for beta in group["betas"]):
        raise GpuguideError(f"betas are {group['betas']}; give AdamW8bit two numbers from 0 to below 1.")


def check_parameters(parameters: Sequence[torch.Tensor]) -> None:
    """Raise a :class:`~gpuguide.errors.GpuguideError` if the optimizer cannot train some parameters together."""
    for parameter in parameters:
        described = f"A parameter of shape {tuple(parameter.shape)}"
        holds_others: bool = is_traceable_wrapper_subclass(parameter)
        if holds_others:
            raise GpuguideError(
                f"{described} is a {type(parameter).__name__}, and AdamW8bit updates plain tensors; use "
                "torch.optim.AdamW for sharded or quantised parameters."
            )
        if parameter.dtype not in FORMATS:
            raise GpuguideError(f"{described} is in {parameter.dtype}; AdamW8bit updates bf16 and fp32, so convert it.")
    devices = {parameter.device for parameter in parameters}
    if len(devices) > 1:
        names = " and ".join(sorted(map(str, devices)))
        raise GpuguideError(f"Parameters are on {names}; make one AdamW8bit for the parameters of each device.")
