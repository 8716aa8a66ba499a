"""AdamW with states in 8 bits for all parameters in one Triton kernel.

Most parameters are small, and one kernel for each would be launch-bound. So one kernel gets the addresses of all
parameters and of their gradients in a table, and each program looks up which parameter it updates. All states are in
one piece of memory. Parameters or gradients of two formats take one launch for each pair of formats.

Random bits come from a hash of the index and the step, which takes 7 integer operations. Philox takes about a hundred,
and with 10 bytes of memory traffic a parameter these would take longer than the traffic.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl

from gpuguide.errors import GpuguideError
from gpuguide.training_memory.eight_bit_layout import FORMATS, GROUP, is_capturing, is_on
from gpuguide.triton_support.context import device_of

ROWS = 4
"""Groups of a program"""
WARPS = 4
ALIGNED = 16
"""Bytes of which every address must be a multiple, so that loads are wide"""
SETTINGS = 7
"""Settings of a parameter group: lr, weight decay, beta1, beta2, epsilon, log2(beta1), log2(beta2)"""


@triton.jit
def random_bits(index, seed):
    """Return 32 random bits for each index, from a hash of which every bit depends on all input bits."""
    x = (index.to(tl.uint32) + seed) * 0x9E3779B1
    x ^= x >> 16
    x *= 0x21F0AAAD
    x ^= x >> 15
    x *= 0x735A2D97
    x ^= x >> 15
    return x


@triton.jit
def load(ptr, inside, MASKED: tl.constexpr):
    """Load numbers in fp32; those outside are zero."""
    if MASKED:
        return tl.load(ptr, mask=inside, other=0).to(tl.float32)
    return tl.load(ptr).to(tl.float32)


@triton.jit
def store(ptr, values, inside, MASKED: tl.constexpr):
    """Store the numbers that are inside."""
    if MASKED:
        tl.store(ptr, values, mask=inside)
    else:
        tl.store(ptr, values)


@triton.jit
def round_stochastically(w, bits):
    """Return fp32 rounded to bf16 up or down at random; infinities and NaN stay.

    Random bits are added below the last bit of bf16, and carry into it with the right probability.
    """
    carried = ((w.to(tl.int32, bitcast=True) + (bits & 0xFFFF).to(tl.int32)) & -65536).to(tl.float32, bitcast=True)
    largest = 3.3895313892515355e38
    carried = tl.minimum(tl.maximum(carried, -largest), largest)
    return tl.where(tl.abs(w) < float("inf"), carried, w).to(tl.bfloat16)


@triton.jit
def update_groups(
    w_ptr,
    g_ptr,
    m_ptr,
    v_ptr,
    m_scale_ptr,
    v_scale_ptr,
    remaining,  # numbers of the parameter from here to its end
    settings,
    correction,  # 1 - beta**t of both moments
    seed,
    MASKED: tl.constexpr,  # whether fewer numbers remain than ``ROWS`` groups have
    NARROW: tl.constexpr,
    ROWS: tl.constexpr,
    GROUP: tl.constexpr,
):
    """Update groups of 256 numbers, a row each."""
    lr, decay, beta1, beta2, epsilon = settings
    rows = tl.arange(0, ROWS)
    index = rows[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    inside, is_group = index < remaining, rows * GROUP < remaining
    # -- unpack: m is a signed square and v a fourth power, times the scale of the group
    w, g = load(w_ptr + index, inside, MASKED), load(g_ptr + index, inside, MASKED)
    m = load(m_ptr + index, inside, MASKED) * (1.0 / 127.0)
    v = load(v_ptr + index, inside, MASKED) * (1.0 / 255.0)
    m = m * tl.abs(m) * load(m_scale_ptr + rows, is_group, MASKED)[:, None]
    v = v * v
    v = v * v * load(v_scale_ptr + rows, is_group, MASKED)[:, None]
    # -- the moments, and the step
    m += (1 - beta1) * (g - m)
    v += (1 - beta2) * (g * g - v)
    w = w * (1 - lr * decay) - lr * (m / correction[0]) / (tl.sqrt(v / correction[1]) + epsilon)
    # -- pack: m to the nearest, v up, so that no quotient becomes zero
    m_scale, v_scale = tl.max(tl.abs(m), 1), tl.max(v, 1)
    store(m_scale_ptr + rows, m_scale, is_group, MASKED)
    store(v_scale_ptr + rows, v_scale, is_group, MASKED)
    m = m / tl.where(m_scale > 0, m_scale, 1.0)[:, None]
    root = tl.sqrt(tl.abs(m)) * 127.0 + 0.5
    store(m_ptr + index, tl.where(m < 0, -root, root).to(tl.int8), inside, MASKED)
    root = tl.sqrt(tl.sqrt(v / tl.where(v_scale > 0, v_scale, 1.0)[:, None])) * 255.0
    store(v_ptr + index, tl.minimum(tl.ceil(root), 255.0).to(tl.uint8), inside, MASKED)
    if NARROW:
        store(w_ptr + index, round_stochastically(w, random_bits(index, seed)), inside, MASKED)
    else:
        store(w_ptr + index, w, inside, MASKED)


@triton.jit
def adamw_8bit_kernel(
    weight_addresses,  # (parameters,) int64
    gradient_addresses,  # (parameters,) int64, 0 where there is no gradient of this format
    sizes,  # (parameters,) int64
    starts,  # (parameters,) int64, index of the first state
    groups,  # (parameters,) int64, index of the parameter group
    program_parameter,  # (programs,) int32, which parameter a program updates
    program_start,  # (programs,) int64, from which of its numbers
    m_ptr,  # int8, all states
    v_ptr,  # uint8
    m_scale_ptr,  # fp32, one for each group of states
    v_scale_ptr,  # fp32
    settings_ptr,  # (parameter groups, SETTINGS) fp32
    count_ptr,  # (parameters,) fp32, t: steps with this one
    NARROW: tl.constexpr,  # bf16, rounded stochastically, or fp32
    NARROW_GRADIENT: tl.constexpr,
    ROWS: tl.constexpr,
    GROUP: tl.constexpr,
    SETTINGS: tl.constexpr,
):
    """Update ``ROWS`` groups of a parameter, unless it has no gradient."""
    program = tl.program_id(0)
    number = tl.load(program_parameter + program)
    gradient_address = tl.load(gradient_addresses + number)
    if gradient_address == 0:
        return
    first = tl.multiple_of(tl.load(program_start + program), GROUP)
    remaining = tl.load(sizes + number) - first
    start = tl.multiple_of(tl.load(starts + number) + first, GROUP)
    w_ptr = tl.load(weight_addresses + number).to(tl.pointer_type(tl.bfloat16 if NARROW else tl.float32))
    g_ptr = gradient_address.to(tl.pointer_type(tl.bfloat16 if NARROW_GRADIENT else tl.float32))
    w_ptr, g_ptr = tl.multiple_of(w_ptr, 16) + first, tl.multiple_of(g_ptr, 16) + first
    m_ptr += start
    v_ptr += start
    m_scale_ptr += start // GROUP
    v_scale_ptr += start // GROUP
    settings_ptr += tl.load(groups + number) * SETTINGS
    settings = (
        tl.load(settings_ptr),
        tl.load(settings_ptr + 1),
        tl.load(settings_ptr + 2),
        tl.load(settings_ptr + 3),
        tl.load(settings_ptr + 4),
    )
    count = tl.load(count_ptr + number)
    correction = (
        1 - tl.exp2(count * tl.load(settings_ptr + 5)),
        1 - tl.exp2(count * tl.load(settings_ptr + 6)),
    )
    seed = start.to(tl.uint32) + count.to(tl.uint32) * 0x85EBCA6B
    if remaining >= ROWS * GROUP:  # without masks, loads are wide
        update_groups(
            w_ptr, g_ptr, m_ptr, v_ptr, m_scale_ptr, v_scale_ptr, remaining, settings, correction, seed,
            False, NARROW, ROWS, GROUP,
        )  # fmt: skip
    else:
        update_groups(
            w_ptr, g_ptr, m_ptr, v_ptr, m_scale_ptr, v_scale_ptr, remaining, settings, correction, seed,
            True, NARROW, ROWS, GROUP,
        )  # fmt: skip


class KernelLaunch:
    """The tables of the parameters of an :class:`~gpuguide.training_memory.eight_bit.AdamW8bit`, and the launches.

    Tables that change are written to new memory, and the tables, gradients and states of a capture are kept, so that
    steps after it change nothing that a replay reads.
    """

    def __init__(self, optimizer: Any) -> None:
        self.optimizer, self.device = optimizer, optimizer.m.device
        parameters = optimizer.parameters
        groups = [id(group) for group in optimizer.param_groups]
        self.sizes = torch.tensor([parameter.numel() for parameter in parameters], device=self.device)
        self.starts = torch.tensor(optimizer.starts, device=self.device)
        self.groups = torch.tensor([groups.index(id(group)) for group in optimizer.groups], device=self.device)
        self.programs = {dtype: self._programs(dtype) for dtype in {parameter.dtype for parameter in parameters}}
        self._known: dict[str, list[Any]] = {}
        self._tables: dict[str, torch.Tensor] = {}
        self.captured: list[Any] = []

    def _programs(self, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the parameter of each program of a launch, and the first number that the program updates."""
        block = ROWS * GROUP
        pairs = [
            (number, first)
            for number, parameter in enumerate(self.optimizer.parameters)
            if parameter.dtype == dtype
            for first in range(0, parameter.numel(), block)
        ]
        numbers, firsts = torch.tensor(pairs, dtype=torch.int64).view(-1, 2).to(self.device).unbind(1)
        return numbers.int(), firsts.contiguous()

    def step(self) -> set[int]:
        """Launch the kernels, and return the indices of the parameters that they update.

        Left out are parameters without a gradient, and those whose memory is not contiguous or not aligned.
        """
        optimizer = self.optimizer
        gradients = {
            number: readable(parameter.grad)
            for number, parameter in enumerate(optimizer.parameters)
            if parameter.grad is not None and is_aligned(parameter)
        }
        if not gradients:
            return set()
        rows: list[list[int]] = [[parameter.data_ptr() for parameter in optimizer.parameters]]
        for dtype in FORMATS:
            of_format = {number: grad.data_ptr() for number, grad in gradients.items() if grad.dtype == dtype}
            rows.append([of_format.get(number, 0) for number in range(len(optimizer.parameters))])
        addresses = self._table("addresses", rows, torch.int64)
        has_gradient = self._table(
            "has_gradient", [float(number in gradients) for number in range(len(optimizer.parameters))], torch.float32
        )
        settings = self._settings()
        if is_capturing(optimizer.m):
            self.captured.append((addresses, has_gradient, settings, gradients))
        optimizer.count += has_gradient
        formats = {(optimizer.parameters[number].dtype, grad.dtype) for number, grad in gradients.items()}
        with device_of(optimizer.m):
            for dtype, gradient_dtype in sorted(formats, key=str):
                numbers, firsts = self.programs[dtype]
                if len(numbers):
                    adamw_8bit_kernel[(len(numbers),)](
                        addresses[0], addresses[1 + FORMATS.index(gradient_dtype)],
                        self.sizes, self.starts, self.groups, numbers, firsts,
                        optimizer.m, optimizer.v, optimizer.m_scale, optimizer.v_scale, settings, optimizer.count,
                        NARROW=dtype == torch.bfloat16, NARROW_GRADIENT=gradient_dtype == torch.bfloat16,
                        ROWS=ROWS, GROUP=GROUP, SETTINGS=SETTINGS, num_warps=WARPS,
                    )  # fmt: skip
        return set(gradients)

    def _settings(self) -> torch.Tensor:
        """Return the settings of all groups; a learning rate on the device is copied on it, in each replay too."""
        groups = self.optimizer.param_groups
        rows = []
        for group in groups:
            lr = 0.0 if is_on(group["lr"], self.device) else float(group["lr"])
            log2_betas = [math.log2(beta) if beta else -math.inf for beta in group["betas"]]
            rows.append([lr, float(group["weight_decay"]), *map(float, group["betas"]), group["eps"], *log2_betas])
        settings = self._table("settings", rows, torch.float32)
        for number, group in enumerate(groups):
            if is_on(group["lr"], self.device):
                settings[number, 0].copy_(group["lr"].reshape(()))
        return settings

    def _table(self, name: str, rows: list[Any], dtype: torch.dtype) -> torch.Tensor:
        """Return a table on the device, which is copied to new memory when it changes.

        Raises
        ------
        GpuguideError
            If it changes while a graph is captured: a replay would copy it from memory that is gone.
        """
        if self._known.get(name) != rows:
            if is_capturing(self.optimizer.m):
                raise GpuguideError(
                    f"The {name.replace('_', ' ')} of AdamW8bit changed since its last step, and a CUDA graph is being "
                    "captured. Take a step with the same settings before the capture, and keep the gradients' memory "
                    "by zero_grad(set_to_none=False)."
                )
            # pinned, since a copy from pageable memory would wait for the GPU
            table = torch.tensor(rows, dtype=dtype, pin_memory=self.device.type == "cuda")
            self._known[name], self._tables[name] = rows, table.to(self.device, non_blocking=True)
        return self._tables[name]


def is_aligned(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is contiguous and begins where wide loads may."""
    return tensor.is_contiguous() and tensor.data_ptr() % ALIGNED == 0


def readable(gradient: torch.Tensor) -> torch.Tensor:
    """Return a gradient that the kernel can load: itself if it is aligned and in bf16 or fp32, or a copy."""
    gradient = gradient if gradient.dtype in FORMATS else gradient.float()
    return gradient if is_aligned(gradient) else gradient.clone(memory_format=torch.contiguous_format)
