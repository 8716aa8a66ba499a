"""AdamW for a parameter in 16 bits with a copy in fp32, in one pass over memory, as a Triton kernel.

PyTorch's own takes five passes for that: the gradient is copied to fp32, its norm taken, the gradient scaled, AdamW
reads and writes four numbers, and the copy is rounded to the parameter: 52 bytes a parameter. What must move is 28: the
gradient, the copy and two averages in, the copy, the averages and the parameter out.

Source: I. Loshchilov and F. Hutter, "Decoupled Weight Decay Regularization", 2019, algorithm 2.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

BLOCK = 1024
WARPS = 4


@triton.jit
def adamw_kernel(
    master_ptr,  # (n,) fp32, the copy
    parameter_ptr,  # (n,) bf16 or fp16
    gradient_ptr,  # (n,) in any format
    mean_ptr,  # (n,) fp32, m
    square_ptr,  # (n,) fp32, v
    rate_ptr,  # () fp32, the learning rate
    count_ptr,  # () fp32, t: steps with this one
    factor_ptr,  # () fp32, by which gradients are clipped
    n,
    beta1,
    beta2,
    log2_beta1,
    log2_beta2,
    epsilon,
    weight_decay,
    BLOCK: tl.constexpr,
):
    """Take a step of ``BLOCK`` numbers of a parameter."""
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < n
    rate, count = tl.load(rate_ptr), tl.load(count_ptr)
    # -- load g, clipped, and what is kept
    g = tl.load(gradient_ptr + offsets, mask=inside, other=0.0).to(tl.float32) * tl.load(factor_ptr)
    w = tl.load(master_ptr + offsets, mask=inside, other=0.0)
    m = tl.load(mean_ptr + offsets, mask=inside, other=0.0)
    v = tl.load(square_ptr + offsets, mask=inside, other=0.0)
    # -- the averages, and what they are short of in the first steps
    m += (1 - beta1) * (g - m)
    v += (1 - beta2) * (g * g - v)
    m_hat = m / (1 - tl.exp2(count * log2_beta1))
    v_hat = v / (1 - tl.exp2(count * log2_beta2))
    # -- decay, then step
    w -= rate * weight_decay * w
    w -= rate * m_hat / (tl.sqrt(v_hat) + epsilon)
    # -- store; the parameter is the copy, rounded
    tl.store(master_ptr + offsets, w, mask=inside)
    tl.store(mean_ptr + offsets, m, mask=inside)
    tl.store(square_ptr + offsets, v, mask=inside)
    tl.store(parameter_ptr + offsets, w.to(parameter_ptr.dtype.element_ty), mask=inside)


def adamw_(
    master: torch.Tensor,
    parameter: torch.Tensor,
    gradient: torch.Tensor,
    mean: torch.Tensor,
    square: torch.Tensor,
    rate: torch.Tensor,
    count: torch.Tensor,
    factor: torch.Tensor,
    *,
    log2_betas: tuple[float, float],
    betas: tuple[float, float],
    epsilon: float,
    weight_decay: float,
) -> None:
    """Take a step of one parameter, in place.

    Parameters
    ----------
    master, parameter, gradient, mean, square : torch.Tensor
        Of one shape, contiguous. The copy and the averages are fp32.
    rate, count, factor : torch.Tensor
        Scalars in fp32 on the device: the learning rate, the number of steps with this one, and the clipping factor.
    log2_betas, betas, epsilon, weight_decay
        Settings of AdamW.
    """
    count_of = parameter.numel()
    adamw_kernel[(triton.cdiv(count_of, BLOCK),)](
        master_ptr=master,
        parameter_ptr=parameter,
        gradient_ptr=gradient,
        mean_ptr=mean,
        square_ptr=square,
        rate_ptr=rate,
        count_ptr=count,
        factor_ptr=factor,
        n=count_of,
        beta1=betas[0],
        beta2=betas[1],
        log2_beta1=log2_betas[0],
        log2_beta2=log2_betas[1],
        epsilon=epsilon,
        weight_decay=weight_decay,
        BLOCK=BLOCK,
        num_warps=WARPS,
    )
