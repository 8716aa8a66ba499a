"""Choice of a backend for attention: the fastest of those that were measured and have no known bug.

The order of speed comes from measurements. ``choices.json`` in this folder holds it for each case of the benchmark
``attention`` and each GPU with a published record; ``gpuguide records choices --write`` writes it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gpuguide.attention import sdpa
from gpuguide.attention.checks import check, dtype_name
from gpuguide.attention.gpu import GPU, MeasuredCase, describe_gpu
from gpuguide.attention.known_bugs import find_cudnn_bug, requires_gradients
from gpuguide.attention.layout import HEAD_SIZES, is_addressable

BACKENDS = ("gluon", "triton", "sdpa-cudnn", "sdpa-flash", "sdpa-efficient", "sdpa")
"""Backends: this library's kernels in Gluon (for Hopper) or in Triton;
:func:`torch.nn.functional.scaled_dot_product_attention` with one of its kernels (``sdpa-flash`` is FlashAttention-2),
or with the kernel that PyTorch chooses"""
OURS = ("gluon", "triton")
OLDEST = (9, 0)
"""Lowest compute capability of GPUs with the copy engine that moves our kernel's tiles. On older GPUs the kernel is
correct, but PyTorch's are faster."""
GLUON_GENERATION = 9
"""Major compute capability whose instructions the Gluon kernel uses"""
LAST_SEES_LAST = "The last query sees the last key, for which PyTorch would need a mask and our kernel does not."
COPIED = "the copy engine needs the numbers of a row side by side, and rows at multiples of 16 bytes from each other."
ALL_SCORES = "None of PyTorch's fused kernels supports the call, so all scores are stored in memory."


@dataclass(frozen=True)
class BackendChoice:
    """Backend for an attention call, with the reason."""

    backend: str
    reason: str
    """Reason for the backend, as a sentence"""
    notes: tuple[str, ...] = ()
    """Sentences on further time and memory (conversions, copies), on kernels skipped because of a known bug, and
    on slower fallbacks"""


def choose(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool = False, mask: torch.Tensor | None = None
) -> BackendChoice:
    """Return the backend that :func:`gpuguide.attention.attention` would use, the reason, and notes on further costs.

    Nothing is computed. Parameters and errors are those of :func:`gpuguide.attention.attention`. Whether gradients are
    needed, which affects the choice, is read from the tensors.
    """
    before = q.dtype
    q, k, v = (cast_for_autocast(tensor) for tensor in (q, k, v))
    mask = None if mask is None else cast_for_autocast(mask)
    check(q, k, v, causal, mask)
    backend, reason = decide(q, k, v, causal, mask)
    converted = [f"Autocast converts {dtype_name(before)} to {dtype_name(q.dtype)}."] if q.dtype != before else []
    return BackendChoice(backend, reason, (*converted, *list_notes(backend, q, k, v, causal, mask)))


def decide(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, mask: torch.Tensor | None
) -> tuple[str, str]:
    """Return the backend and the reason."""
    if not q.is_cuda:
        return "sdpa", f"The tensors are on {q.device.type}, and our kernel runs on NVIDIA GPUs."
    return decide_for_gpu(describe_gpu(q.device.index), q, k, v, causal, mask)


def decide_for_gpu(
    gpu: GPU, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, mask: torch.Tensor | None
) -> tuple[str, str]:
    """Return the backend and the reason, on a GPU."""
    unsupported = explain_unsupported(gpu, q, k, mask)
    measured = find_nearest_case(gpu, q, k, v, causal)
    unmeasured = explain_unsupported_call(q, k, mask) or explain_unmeasured(gpu, q, measured)
    needs_mask = causal and 1 < q.shape[2] < k.shape[2]
    if needs_mask and unsupported is None:
        ours = [backend for backend in measured.order if backend in OURS and is_usable(backend, gpu, None)]
        return (ours[0] if ours else "triton"), LAST_SEES_LAST
    if unmeasured is not None:
        return "sdpa", f"{unmeasured} PyTorch chooses among its own kernels."
    usable = [backend for backend in measured.order if is_usable(backend, gpu, unsupported)]
    if not usable:
        return "sdpa", "None of the measured backends is usable here. PyTorch chooses among its own kernels."
    reason = (
        f"The fastest of those usable here in the nearest case measured on {gpu.measured_on}: {measured.description}."
    )
    return usable[0], reason


def is_usable(backend: str, gpu: GPU, unsupported: str | None) -> bool:
    """Return whether a measured backend is usable; ``unsupported`` is the reason against our kernels, if any."""
    if backend == "gluon":
        return unsupported is None and explain_unsupported_gluon(gpu) is None
    if backend == "triton":
        return unsupported is None
    return sdpa.is_enabled(backend)


def explain_unsupported_call(q: torch.Tensor, k: torch.Tensor, mask: torch.Tensor | None) -> str | None:
    """Return the reason why our kernel supports no such call on any GPU and none was measured, or None."""
    if mask is not None:
        return "There is a mask, and our kernel supports the causal mask only."
    if q.dtype not in (torch.bfloat16, torch.float16):
        return f"The tensors are {dtype_name(q.dtype)}, and our kernel takes bfloat16 and float16."
    if q.numel() == 0 or k.numel() == 0:
        return "There is nothing to compute: a tensor is empty."
    return None


def explain_unmeasured(gpu: GPU, q: torch.Tensor, measured: MeasuredCase) -> str | None:
    """Return the reason why no measurement tells which backend is fastest, or None if one does."""
    if gpu.measured_on is None:
        return f"No GPU of the generation of {gpu.name} was measured."
    if not measured.order:
        return f"Heads of {q.shape[3]} were not measured."
    if q.shape[2] == 1:
        return "A single query was not measured."
    return None


def find_nearest_case(gpu: GPU, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> MeasuredCase:
    """Return the measured case with the nearest number of keys, as a ratio, and with shared heads if possible.

    Its order is empty if no case was measured.
    """
    gradients, head_dim, length, shares = requires_gradients(q, k, v), q.shape[3], k.shape[2], sdpa.shares_heads(q, k)
    for shares_heads in (shares, not shares):
        nearest = None
        for case in gpu.cases:  # from few keys to many
            if case.head_dim != head_dim or (case.gradients, case.causal) != (gradients, causal):
                continue
            if case.shares_heads == shares_heads and (nearest is None or length * length > nearest.keys * case.keys):
                nearest = case
        if nearest is not None:
            return nearest
    return MeasuredCase("", False, False, False, 0, 0, ())


def explain_unsupported(gpu: GPU, q: torch.Tensor, k: torch.Tensor, mask: torch.Tensor | None) -> str | None:
    """Return the reason why our kernel does not support a call, or None if it does."""
    reason = explain_unsupported_call(q, k, mask)
    if reason is not None:
        return reason
    if not gpu.has_triton:
        return "Triton, which our kernel is written in, is not installed."
    if gpu.capability < OLDEST:
        capability = format_capability(gpu.capability)
        return f"The GPU has compute capability {capability}, and our kernel is fast from 9.0 upwards."
    if q.shape[3] not in HEAD_SIZES:
        return f"head_dim is {q.shape[3]}, and our kernel takes {', '.join(map(str, HEAD_SIZES))}."
    return None


def explain_unsupported_gluon(gpu: GPU) -> str | None:
    """Return the reason why the Gluon kernel does not support a GPU, or None if it does."""
    if gpu.capability[0] != GLUON_GENERATION:
        return f"The GPU has compute capability {format_capability(gpu.capability)}, and the Gluon kernel is for 9.0."
    if not gpu.has_gluon:
        return "The installed Triton has no Gluon, in which the kernel is written."
    return None


def check_backend(backend: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None) -> None:
    """Raise ``ValueError`` if a backend is unknown, or is one of ours that does not support the call."""
    if backend not in BACKENDS:
        raise ValueError(f"The backend is {backend!r}; it must be one of {', '.join(BACKENDS)}, or None.")
    if backend not in OURS:
        return
    if not q.is_cuda:
        reason: str | None = f"The tensors are on {q.device.type}, and our kernel runs on NVIDIA GPUs."
    else:
        gpu = describe_gpu(q.device.index)
        reason = explain_unsupported(gpu, q, k, mask)
        if reason is None and backend == "gluon":
            reason = explain_unsupported_gluon(gpu)
    if reason is not None:
        raise ValueError(f"The backend {backend} does not support this call: {reason} Omit backend, or pass 'sdpa'.")


def cast_for_autocast(tensor: torch.Tensor) -> torch.Tensor:
    """Cast as autocast casts the operands of matmuls; float64 stays unchanged."""
    device_type = tensor.device.type
    if device_type not in ("cpu", "cuda") or not torch.is_autocast_enabled(device_type):
        return tensor
    if not tensor.is_floating_point() or tensor.dtype == torch.float64:
        return tensor
    return tensor.to(torch.get_autocast_dtype(device_type))


def format_capability(capability: tuple[int, int]) -> str:
    """Return a compute capability as text, such as 9.0."""
    return f"{capability[0]}.{capability[1]}"


# --- notes on further costs -------------------------------------------------------------------------------


def list_notes(
    backend: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, mask: torch.Tensor | None
) -> list[str]:
    """Return sentences on the time and memory that a backend needs in addition to the computation."""
    if backend in OURS:
        tensors = {"q": q, "k": k, "v": v}
        return [f"{name} is copied: {COPIED}" for name, tensor in tensors.items() if not is_addressable(tensor)]
    notes = []
    makes_mask = causal and 1 < q.shape[2] < k.shape[2]
    if makes_mask:
        notes.append(
            "A mask of queries by keys is made: with PyTorch's causal mask the first query sees the first key only."
        )
        mask = q.new_ones((), dtype=torch.bool).expand(q.shape[2], k.shape[2])
    elif mask is not None:
        notes.append("The mask is copied, with the rows that see no key unmasked.")
    cudnn_bug = find_cudnn_bug(q, k, v, has_mask=mask is not None)
    if cudnn_bug is not None:
        notes.append(cudnn_bug)
    if q.is_cuda and q.numel() and k.numel():
        kernels = sdpa.list_supporting_kernels(q, k, v, mask, causal and not makes_mask)
        kernels = [name for name in kernels if name != "sdpa-cudnn" or cudnn_bug is None]
        notes.append(f"PyTorch's kernels that support the call: {', '.join(kernels)}." if kernels else ALL_SCORES)
    return notes
