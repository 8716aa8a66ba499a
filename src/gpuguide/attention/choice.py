"""Who computes an attention: the fastest of those that were measured and are known to be right.

The order of speed comes from measurements. ``choices.json`` beside this file holds it for each case of the benchmark
``attention`` and each GPU with a published record; ``gpuguide records choices --write`` writes it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gpuguide.attention import sdpa
from gpuguide.attention.checks import check, name_of
from gpuguide.attention.faults import gradients_asked, why_not_cudnn
from gpuguide.attention.gpu import GPU, Measured, gpu_of
from gpuguide.attention.layout import HEAD_SIZES, is_addressable

BACKENDS = ("gluon", "triton", "sdpa-cudnn", "sdpa-flash", "sdpa-efficient", "sdpa")
"""Who can compute. Our kernels, with the forward pass's schedule written by hand or by Triton;
:func:`torch.nn.functional.scaled_dot_product_attention` with one of its kernels (``sdpa-flash`` is FlashAttention-2),
or with whichever it takes itself"""
OURS = ("gluon", "triton")
OLDEST = (9, 0)
"""The compute capability from which on a GPU has the copy engine that moves our kernel's tiles. Without it the kernel
is right, but the library's are faster."""
BY_HAND_GENERATION = 9
"""The major compute capability whose instructions the schedule by hand is written in"""
LAST_SEES_LAST = "The last query sees the last key, for which PyTorch would need a mask and our kernel does not."
COPIED = "the copy engine needs the numbers of a row side by side, and rows at multiples of 16 bytes from each other."
ALL_SCORES = "None of PyTorch's kernels takes it but the formula, with all scores in memory."


@dataclass(frozen=True)
class Choice:
    """Who computes an attention, and why."""

    backend: str
    reason: str
    """A sentence"""
    notes: tuple[str, ...] = ()
    """Sentences on what costs time or memory beside the computation, such as what is converted or copied, on what is
    left out because its results are wrong, and on where a slower way is taken"""


def choose(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool = False, mask: torch.Tensor | None = None
) -> Choice:
    """Return who would compute an attention, why, and at what further cost, without computing it.

    Parameters, and errors, as for :func:`gpuguide.attention.attention`. Whether gradients are asked for, which matters,
    is read from the tensors.
    """
    before = q.dtype
    q, k, v = (in_autocast_type(tensor) for tensor in (q, k, v))
    mask = None if mask is None else in_autocast_type(mask)
    check(q, k, v, causal, mask)
    backend, reason = decide(q, k, v, causal, mask)
    converted = [f"Autocast converts {name_of(before)} to {name_of(q.dtype)}."] if q.dtype != before else []
    return Choice(backend, reason, (*converted, *notes(backend, q, k, v, causal, mask)))


def decide(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, mask: torch.Tensor | None
) -> tuple[str, str]:
    """Return the backend and the reason."""
    if not q.is_cuda:
        return "sdpa", f"The tensors are on {q.device.type}, and our kernel runs on NVIDIA GPUs."
    return decide_on(gpu_of(q.device.index), q, k, v, causal, mask)


def decide_on(
    gpu: GPU, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, mask: torch.Tensor | None
) -> tuple[str, str]:
    """Return the backend and the reason, on a GPU."""
    why_not = why_not_ours(gpu, q, k, mask)
    measured = nearest(gpu, q, k, v, causal)
    why_unmeasured = why_left_to_pytorch(q, k, mask) or why_not_measured(gpu, q, measured)
    needs_mask = causal and 1 < q.shape[2] < k.shape[2]
    if needs_mask and why_not is None:
        ours = [backend for backend in measured.order if backend in OURS and is_usable(backend, gpu, None)]
        return (ours[0] if ours else "triton"), LAST_SEES_LAST
    if why_unmeasured is not None:
        return "sdpa", f"{why_unmeasured} PyTorch chooses among its own kernels."
    usable = [backend for backend in measured.order if is_usable(backend, gpu, why_not)]
    if not usable:
        return "sdpa", "Nobody who was measured can be asked here. PyTorch chooses among its own kernels."
    reason = f"The fastest of those usable here in the nearest case measured on {gpu.measured_on}: {measured.what}."
    return usable[0], reason


def is_usable(backend: str, gpu: GPU, why_not_ours: str | None) -> bool:
    """Return whether a backend may be asked for what was measured."""
    if backend == "gluon":
        return why_not_ours is None and why_not_by_hand(gpu) is None
    if backend == "triton":
        return why_not_ours is None
    return sdpa.is_enabled(backend)


def why_left_to_pytorch(q: torch.Tensor, k: torch.Tensor, mask: torch.Tensor | None) -> str | None:
    """Return a sentence on why a call is none of those that were measured and that our kernel takes, or nothing."""
    if mask is not None:
        return "There is a mask, and our kernel knows none but the causal one."
    if q.dtype not in (torch.bfloat16, torch.float16):
        return f"The tensors are {name_of(q.dtype)}, and our kernel takes bfloat16 and float16."
    if q.numel() == 0 or k.numel() == 0:
        return "There is nothing to compute: a tensor is empty."
    return None


def why_not_measured(gpu: GPU, q: torch.Tensor, measured: Measured) -> str | None:
    """Return a sentence on why no measurement says who is fastest, or nothing if one does."""
    if gpu.measured_on is None:
        return f"No GPU of the generation of {gpu.name} was measured."
    if not measured.order:
        return f"Heads of {q.shape[3]} were not measured."
    if q.shape[2] == 1:
        return "A single query was not measured."
    return None


def nearest(gpu: GPU, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> Measured:
    """Return the measured case whose number of keys is nearest, as a ratio; with shared heads if such were measured.

    Its order is empty if there is none.
    """
    gradients, head_dim, length, shares = gradients_asked(q, k, v), q.shape[3], k.shape[2], sdpa.shares_heads(q, k)
    for shares_heads in (shares, not shares):
        found = None
        for case in gpu.cases:  # from few keys to many
            if case.head_dim != head_dim or (case.gradients, case.causal) != (gradients, causal):
                continue
            if case.shares_heads == shares_heads and (found is None or length * length > found.keys * case.keys):
                found = case
        if found is not None:
            return found
    return Measured("", False, False, False, 0, 0, ())


def why_not_ours(gpu: GPU, q: torch.Tensor, k: torch.Tensor, mask: torch.Tensor | None) -> str | None:
    """Return a sentence on what our kernel lacks for this, or nothing if it takes it."""
    why_not = why_left_to_pytorch(q, k, mask)
    if why_not is not None:
        return why_not
    if not gpu.has_triton:
        return "Triton, which our kernel is written in, is not installed."
    if gpu.capability < OLDEST:
        return f"The GPU has compute capability {dotted(gpu.capability)}, and our kernel is fast from 9.0 on."
    if q.shape[3] not in HEAD_SIZES:
        return f"head_dim is {q.shape[3]}, and our kernel takes {', '.join(map(str, HEAD_SIZES))}."
    return None


def why_not_by_hand(gpu: GPU) -> str | None:
    """Return a sentence on what the schedule by hand lacks for what our kernel takes, or nothing."""
    if gpu.capability[0] != BY_HAND_GENERATION:
        return f"The GPU has compute capability {dotted(gpu.capability)}, and the schedule by hand is for 9.0."
    if not gpu.has_gluon:
        return "Gluon, which the schedule by hand is written in, is not part of this Triton."
    return None


def check_backend(backend: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None) -> None:
    """Raise ``ValueError`` if a backend is unknown, or is one of ours that cannot do this."""
    if backend not in BACKENDS:
        raise ValueError(f"The backend is {backend!r}; it must be one of {', '.join(BACKENDS)}, or None.")
    if backend not in OURS:
        return
    if not q.is_cuda:
        why_not: str | None = f"The tensors are on {q.device.type}, and our kernel runs on NVIDIA GPUs."
    else:
        gpu = gpu_of(q.device.index)
        why_not = why_not_ours(gpu, q, k, mask)
        if why_not is None and backend == "gluon":
            why_not = why_not_by_hand(gpu)
    if why_not is not None:
        raise ValueError(f"The backend {backend} cannot do this: {why_not} Leave the backend out, or ask for sdpa.")


def in_autocast_type(tensor: torch.Tensor) -> torch.Tensor:
    """Cast as autocast casts the operands of products; float64 stays."""
    kind = tensor.device.type
    if kind not in ("cpu", "cuda") or not torch.is_autocast_enabled(kind):
        return tensor
    if not tensor.is_floating_point() or tensor.dtype == torch.float64:
        return tensor
    return tensor.to(torch.get_autocast_dtype(kind))


def dotted(capability: tuple[int, int]) -> str:
    """Return a compute capability as one writes it."""
    return f"{capability[0]}.{capability[1]}"


# --- what it costs further -------------------------------------------------------------------------------


def notes(
    backend: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, mask: torch.Tensor | None
) -> list[str]:
    """Return what a choice costs beside the computation."""
    if backend in OURS:
        return [
            f"{name} is copied: {COPIED}" for name, each in (("q", q), ("k", k), ("v", v)) if not is_addressable(each)
        ]
    found = []
    makes_mask = causal and 1 < q.shape[2] < k.shape[2]
    if makes_mask:
        found.append("A mask of queries by keys is made: PyTorch's own lets the first query see the first key only.")
        mask = q.new_ones((), dtype=torch.bool).expand(q.shape[2], k.shape[2])
    elif mask is not None:
        found.append("The mask is copied, with the rows opened that see no key.")
    why_not = why_not_cudnn(q, k, v, masked=mask is not None)
    if why_not is not None:
        found.append(why_not)
    if q.is_cuda and q.numel() and k.numel():
        taking = sdpa.kernels_that_take(q, k, v, mask, causal and not makes_mask)
        taking = [name for name in taking if name != "sdpa-cudnn" or why_not is None]
        found.append(f"Of PyTorch's kernels these take it: {', '.join(taking)}." if taking else ALL_SCORES)
    return found
