"""AdamW with states in 8 bits for all parameters in one Triton kernel.

Most parameters are small, and a kernel for each would wait for its launch. So one kernel gets the addresses of all
parameters and of their gradients in a table, and each program looks up whose numbers it updates. The states lie in one
piece of memory.

Random bits come from a hash of the number's place and the step, which takes 7 integer operations; Philox takes about a
hundred, and at 10 bytes a number these would take longer than the memory.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl

GROUP = 256
ROWS = 4
"""Groups of a program"""
WARPS = 4
ALIGNED = 16
"""Bytes of which every address must be a multiple, so that loads are wide"""


@triton.jit
def random_bits(place, seed):
    """Return 32 random bits for each place: a hash whose bits each depend on all of its input."""
    x = (place.to(tl.uint32) + seed) * 0x9E3779B1
    x ^= x >> 16
    x *= 0x21F0AAAD
    x ^= x >> 15
    x *= 0x735A2D97
    x ^= x >> 15
    return x


@triton.jit
def load(ptr, inside, MASKED: tl.constexpr):
    """Return numbers in fp32, those outside as zero."""
    if MASKED:
        return tl.load(ptr, mask=inside, other=0).to(tl.float32)
    return tl.load(ptr).to(tl.float32)


@triton.jit
def store(ptr, values, inside, MASKED: tl.constexpr):
    """Store numbers, those outside aside."""
    if MASKED:
        tl.store(ptr, values, mask=inside)
    else:
        tl.store(ptr, values)


@triton.jit
def update_groups(
    w_ptr,
    g_ptr,
    m_ptr,
    v_ptr,
    m_scale_ptr,
    v_scale_ptr,
    left,  # numbers of the parameter from here to its end
    settings,
    share,  # 1 - beta**t of both averages
    seed,
    MASKED: tl.constexpr,  # whether fewer are left than ``ROWS`` groups have
    NARROW: tl.constexpr,
    ROWS: tl.constexpr,
    GROUP: tl.constexpr,
):
    """Update groups of 256 numbers, a row each."""
    rate, decay, beta1, beta2, epsilon = settings
    rows = tl.arange(0, ROWS)
    place = rows[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    inside, is_group = place < left, rows * GROUP < left
    # -- unpack: m is a signed square, v a fourth power, of a share of the group's largest
    w, g = load(w_ptr + place, inside, MASKED), load(g_ptr + place, inside, MASKED)
    m = load(m_ptr + place, inside, MASKED) * (1.0 / 127.0)
    v = load(v_ptr + place, inside, MASKED) * (1.0 / 255.0)
    m = m * tl.abs(m) * load(m_scale_ptr + rows, is_group, MASKED)[:, None]
    v = v * v
    v = v * v * load(v_scale_ptr + rows, is_group, MASKED)[:, None]
    # -- the averages, and the step
    m += (1 - beta1) * (g - m)
    v += (1 - beta2) * (g * g - v)
    w = w * (1 - rate * decay) - rate * (m / share[0]) / (tl.sqrt(v / share[1]) + epsilon)
    # -- pack: m to the nearest, v up, so that no share becomes zero
    m_scale, v_scale = tl.max(tl.abs(m), 1), tl.max(v, 1)
    store(m_scale_ptr + rows, m_scale, is_group, MASKED)
    store(v_scale_ptr + rows, v_scale, is_group, MASKED)
    m = m / tl.where(m_scale > 0, m_scale, 1.0)[:, None]
    root = tl.sqrt(tl.abs(m)) * 127.0 + 0.5
    store(m_ptr + place, tl.where(m < 0, -root, root).to(tl.int8), inside, MASKED)
    root = tl.sqrt(tl.sqrt(v / tl.where(v_scale > 0, v_scale, 1.0)[:, None])) * 255.0
    store(v_ptr + place, tl.minimum(tl.ceil(root), 255.0).to(tl.uint8), inside, MASKED)
    if NARROW:  # random bits are added below bf16's last, and carry into it with the right probability
        noise = (random_bits(place, seed) & 0xFFFF).to(tl.int32)
        w = ((w.to(tl.int32, bitcast=True) + noise) & -65536).to(tl.float32, bitcast=True)
        store(w_ptr + place, w.to(tl.bfloat16), inside, MASKED)
    else:
        store(w_ptr + place, w, inside, MASKED)


@triton.jit
def adamw_8bit_kernel(
    weight_addresses,  # (parameters,) int64
    gradient_addresses,  # (parameters,) int64, 0 where there is none
    sizes,  # (parameters,) int64
    starts,  # (parameters,) int64, where their states begin
    decays,  # (parameters,) fp32, weight decay
    program_parameter,  # (programs,) int32, whose numbers a program updates
    program_start,  # (programs,) int64, which of them is its first
    m_ptr,  # int8, all states
    v_ptr,  # uint8
    m_scale_ptr,  # fp32, one for each group of states
    v_scale_ptr,  # fp32
    rate_ptr,  # () fp32, the learning rate
    count_ptr,  # () fp32, t: steps with this one
    beta1,
    beta2,
    log2_beta1,
    log2_beta2,
    epsilon,
    NARROW: tl.constexpr,  # bf16, rounded at random, or fp32
    NARROW_GRADIENT: tl.constexpr,
    ROWS: tl.constexpr,
    GROUP: tl.constexpr,
):
    """Update ``ROWS`` groups of a parameter, unless it has no gradient."""
    program = tl.program_id(0)
    number = tl.load(program_parameter + program)
    gradient_address = tl.load(gradient_addresses + number)
    if gradient_address == 0:
        return
    first = tl.multiple_of(tl.load(program_start + program), GROUP)
    left = tl.load(sizes + number) - first
    start = tl.multiple_of(tl.load(starts + number) + first, GROUP)
    w_ptr = tl.load(weight_addresses + number).to(tl.pointer_type(tl.bfloat16 if NARROW else tl.float32))
    g_ptr = gradient_address.to(tl.pointer_type(tl.bfloat16 if NARROW_GRADIENT else tl.float32))
    w_ptr, g_ptr = tl.multiple_of(w_ptr, 16) + first, tl.multiple_of(g_ptr, 16) + first
    m_ptr += start
    v_ptr += start
    m_scale_ptr += start // GROUP
    v_scale_ptr += start // GROUP
    rate, count, decay = tl.load(rate_ptr), tl.load(count_ptr), tl.load(decays + number)
    share = 1 - tl.exp2(count * log2_beta1), 1 - tl.exp2(count * log2_beta2)
    seed = start.to(tl.uint32) + count.to(tl.uint32) * 0x85EBCA6B
    settings = rate, decay, beta1, beta2, epsilon
    if left >= ROWS * GROUP:  # without masks, loads are wide
        update_groups(
            w_ptr,
            g_ptr,
            m_ptr,
            v_ptr,
            m_scale_ptr,
            v_scale_ptr,
            left,
            settings,
            share,
            seed,
            False,
            NARROW,
            ROWS,
            GROUP,
        )
    else:
        update_groups(
            w_ptr, g_ptr, m_ptr, v_ptr, m_scale_ptr, v_scale_ptr, left, settings, share, seed, True, NARROW, ROWS, GROUP
        )


class AllParameters:
    """The tables of the parameters of an :class:`~gpuguide.training_memory.eight_bit.AdamW8bit`, and the launch."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer
        parameters, device = optimizer.parameters, optimizer.m.device
        assert all(each.is_contiguous() and each.data_ptr() % ALIGNED == 0 for each in parameters)
        self.narrow = parameters[0].dtype == torch.bfloat16
        assert len({each.dtype for each in parameters}) == 1, "parameters of one launch have one format"
        self.weight_addresses = torch.tensor([each.data_ptr() for each in parameters], device=device)
        self.sizes = torch.tensor([each.numel() for each in parameters], device=device)
        self.starts = torch.tensor(optimizer.starts, device=device)
        self.decays = torch.tensor([float(group["weight_decay"]) for group in optimizer.groups], device=device)
        block = ROWS * GROUP
        numbers = [number for number, each in enumerate(parameters) for _ in range(-(-each.numel() // block))]
        firsts = [first for each in parameters for first in range(0, each.numel(), block)]
        self.program_parameter = torch.tensor(numbers, dtype=torch.int32, device=device)
        self.program_start = torch.tensor(firsts, dtype=torch.int64, device=device)
        self.rate = torch.zeros((), device=device)
        self.known_rate: float | None = None
        self.known_addresses: list[int] = []
        self.gradient_addresses = torch.zeros(len(parameters), dtype=torch.int64, device=device)

    def step(self) -> None:
        """Launch the kernel."""
        optimizer = self.optimizer
        gradients = [None if each.grad is None else each.grad.contiguous() for each in optimizer.parameters]
        found = [each for each in gradients if each is not None]
        if not found:
            return
        formats = {each.dtype for each in found}
        assert len(formats) == 1
        assert all(each.data_ptr() % ALIGNED == 0 for each in found)
        group = optimizer.param_groups[0]
        if group["lr"] != self.known_rate:
            self.known_rate = float(group["lr"])
            self.rate.fill_(self.known_rate)
        addresses = [0 if each is None else each.data_ptr() for each in gradients]
        if addresses != self.known_addresses:  # pinned, since a copy from other memory would wait for the GPU
            self.known_addresses = addresses
            table = torch.tensor(addresses, pin_memory=self.gradient_addresses.is_cuda)
            self.gradient_addresses.copy_(table, non_blocking=True)
        beta1, beta2 = group["betas"]
        adamw_8bit_kernel[(len(self.program_parameter),)](
            self.weight_addresses, self.gradient_addresses, self.sizes, self.starts, self.decays,
            self.program_parameter, self.program_start,
            optimizer.m, optimizer.v, optimizer.m_scale, optimizer.v_scale, self.rate, optimizer.count,
            beta1, beta2, math.log2(beta1), math.log2(beta2), group["eps"],
            NARROW=self.narrow, NARROW_GRADIENT=formats == {torch.bfloat16}, ROWS=ROWS, GROUP=GROUP, num_warps=WARPS,
        )  # fmt: skip
