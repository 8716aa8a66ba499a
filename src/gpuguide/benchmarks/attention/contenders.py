"""Contenders of attention, with the reasons to skip cases."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from gpuguide.attention import reference
from gpuguide.benchmarks.attention.problem import WIDTH, Attend, shape
from gpuguide.hardware.device import Device
from gpuguide.measure.benchmark import Keys

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import FlexKernelOptions

EFFICIENT_SEQ_LENS = (2048, 8192)
FA3_SEQ_LENS = (2048, 8192)
FLEX_SEQ_LENS = {"forward": (2048, 8192), "forward-backward": (8192,)}
FLEX_FLASH_SEQ_LENS, FLEX_FLASH_HEAD_DIM = (8192,), 128
COMPILED_SEQ_LENS = {"forward": (1024, 8192), "forward-backward": (1024,)}
ANEW = "is compiled anew for each shape"


def ours_triton(device: Device, keys: Keys) -> Attend:
    """Return the library's Triton kernels, whose gradients are the same bit by bit in every run."""
    from gpuguide.attention import flash

    return functools.partial(flash.flash_attention, causal=bool(keys["causal"]))


def ours_gluon(device: Device, keys: Keys) -> Attend:
    """Return the library's warp-specialised kernels in Gluon, whose dQ is rounded differently from run to run."""
    from gpuguide.attention import flash

    return functools.partial(flash.flash_attention, causal=bool(keys["causal"]), backend="gluon")


def library(backend: str) -> Callable[[Device, Keys], Attend]:
    """Return a maker of PyTorch's attention with one of its backends and no other."""

    def make(device: Device, keys: Keys) -> Attend:
        from torch.nn.attention import SDPBackend, sdpa_kernel

        only, causal, grouped = getattr(SDPBackend, backend), bool(keys["causal"]), is_grouped(keys)

        def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            with sdpa_kernel([only]):
                return functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=grouped)

        return attend

    return make


def fa3(device: Device, keys: Keys) -> Attend:
    """Return FlashAttention-3's forward pass, whose tensors are (batch, length, heads, head_dim), as those of the next.

    Source: https://github.com/Dao-AILab/flash-attention, ``hopper``, in the package fa3-fwd.
    """
    from fa3_fwd_interface import flash_attn_func

    causal = bool(keys["causal"])

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = flash_attn_func(*(part.transpose(1, 2) for part in (q, k, v)), causal=causal)
        return out.transpose(1, 2)

    return attend


def fa4(device: Device, keys: Keys) -> Attend:
    """Return FlashAttention-4, whose tensors are (batch, length, heads, head_dim): the transposes here are views.

    Source: https://github.com/Dao-AILab/flash-attention, ``flash_attn/cute``.
    """
    from flash_attn.cute import flash_attn_func

    causal = bool(keys["causal"])

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        out, *_ = flash_attn_func(*(part.transpose(1, 2) for part in (q, k, v)), causal=causal)
        return out.transpose(1, 2)

    return attend


def flex(device: Device, keys: Keys, options: FlexKernelOptions | None = None) -> Attend:
    """Return FlexAttention, to be compiled for one shape, with the blocks of a causal mask found beforehand.

    ``options`` are those of its kernel: ``BACKEND="FLASH"`` compiles the mask into the kernels of FlashAttention-4.
    """
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    def is_visible(batch: torch.Tensor, head: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return query >= key

    (seq_len,) = shape(keys, "seq_len")
    mask = create_block_mask(is_visible, None, None, seq_len, seq_len, device=device.torch_device)
    torch.compiler.reset()
    attend = torch.compile(flex_attention, dynamic=False)
    return lambda q, k, v: attend(q, k, v, block_mask=mask, kernel_options=options)


def naive(device: Device, keys: Keys) -> Attend:
    """Return the formula as it reads, with all scores in memory."""
    return functools.partial(reference.naive_attention, causal=bool(keys["causal"]))


def naive_compiled(device: Device, keys: Keys) -> Attend:
    """Return the same, to be compiled for the one shape that it is called with next."""
    torch.compiler.reset()  # after eight shapes the compiler would give up on one function
    return torch.compile(naive(device, keys), dynamic=False)


# --- reasons to skip ------------------------------------------------------------------------------------


def is_grouped(keys: Keys) -> bool:
    """Return whether several heads of queries share one of keys."""
    return keys["heads"] != keys["kv_heads"]


def is_of_a_model(keys: Keys) -> bool:
    """Return whether a case has a model's heads, and not those that all lengths are measured with."""
    heads, head_dim = shape(keys, "heads", "head_dim")
    return heads * head_dim != WIDTH or is_grouped(keys)


def require_hopper(device: Device, keys: Keys) -> str | None:
    """Return the reason to skip other generations of GPUs, or None."""
    if device.capability and device.capability[0] == 9:
        return None
    return "this schedule is written in instructions that only GPUs of compute capability 9 have"


def restrict_efficient(device: Device, keys: Keys) -> str | None:
    """Return the reason to skip shared heads and most lengths, or None: it is a fallback."""
    if is_grouped(keys):
        return "this backend has no grouped-query attention"
    return reason_unless_seq_len(EFFICIENT_SEQ_LENS, keys, "is the backend for what the others do not take")


def restrict_fa3(device: Device, keys: Keys) -> str | None:
    """Return the reason to skip gradients, fp16 and most lengths, or None."""
    if keys["pass"] != "forward":
        return "this build of the library has the forward pass only"
    if keys["dtype"] != "bf16":
        return "this build of the library has no fp16"
    return reason_unless_seq_len(FA3_SEQ_LENS, keys, "is one more library with the same algorithm")


def restrict_fa4(device: Device, keys: Keys) -> str | None:
    """Return the reason to skip older generations of GPUs, or None."""
    if device.capability and device.capability >= (9, 0):
        return None
    return "this library has kernels for compute capability 9.0 and newer"


def restrict_flex(device: Device, keys: Keys) -> str | None:
    """Return the reason to skip most shapes, or None: each is compiled anew."""
    return reason_unless_seq_len(FLEX_SEQ_LENS[str(keys["pass"])], keys, ANEW)


def restrict_flex_flash(device: Device, keys: Keys) -> str | None:
    """Return the reason to skip all but one shape, or None: each takes about ten seconds to compile."""
    if why := restrict_fa4(device, keys):
        return why
    if keys["head_dim"] == FLEX_FLASH_HEAD_DIM:
        return reason_unless_seq_len(FLEX_FLASH_SEQ_LENS, keys, ANEW)
    return f"{ANEW}, and is measured with heads of {FLEX_FLASH_HEAD_DIM} only"


def restrict_compiled(device: Device, keys: Keys) -> str | None:
    """Return the reason to skip most shapes, or None: each is compiled anew."""
    return reason_unless_seq_len(COMPILED_SEQ_LENS[str(keys["pass"])], keys, ANEW)


def reason_unless_seq_len(lengths: Sequence[int], keys: Keys, because: str) -> str | None:
    """Return the reason to skip all but causal attention at some lengths, or None."""
    if keys["causal"] and keys["seq_len"] in lengths and not is_of_a_model(keys):
        return None
    return f"{because}, and is measured with a causal mask at {join_numbers(lengths)} tokens only"


def join_numbers(numbers: Sequence[int]) -> str:
    """Join numbers as in a sentence.

    >>> join_numbers((512, 2048, 8192))
    '512, 2048 and 8192'
    """
    *most, last = map(str, numbers)
    return f"{', '.join(most)} and {last}" if most else last
