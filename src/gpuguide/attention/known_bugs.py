"""Known bugs of cuDNN's attention, as others reported them: calls whose results are wrong."""

from __future__ import annotations

import torch

from gpuguide.attention.gpu import describe_gpu


def find_cudnn_bug(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, has_mask: bool) -> str | None:
    """Return a sentence on a reported bug of cuDNN's kernel that affects a call, or None.

    Sources: https://github.com/pytorch/pytorch/issues/196678 and its fix https://github.com/pytorch/pytorch/pull/196861,
    https://github.com/NVIDIA/cudnn-frontend/issues/1072, https://github.com/pytorch/pytorch/issues/193893.
    """
    if not q.is_cuda:
        return None
    gpu, queries, keys = describe_gpu(q.device.index), q.shape[2], k.shape[2]
    is_hopper, has_gradients = gpu.capability[0] == 9, requires_gradients(q, k, v)
    if is_hopper and has_gradients and has_mask and keys % 128 == 64 and gpu.cudnn < 92600:
        return (
            "cuDNN is skipped: before 9.26 its backward pass can give NaN on this GPU where there is a mask and the "
            "number of keys leaves 64 when divided by 128 (pytorch#196678)."
        )
    if is_hopper and has_gradients and queries == 1:
        return "cuDNN is skipped: its backward pass can give NaN for a single query (NVIDIA/cudnn-frontend#1072)."
    if gpu.capability[0] == 10 and queries == 1 and gpu.cudnn >= 91900:
        return (
            "cuDNN is skipped: from 9.19 on, it was reported to be wrong for a single query on such a GPU "
            "(pytorch#193893)."
        )
    return None


def requires_gradients(*tensors: torch.Tensor) -> bool:
    """Return whether autograd records gradients for any of the tensors."""
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
