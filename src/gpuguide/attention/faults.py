"""Wrong results of cuDNN's attention that others have reported: who chooses must know them."""

from __future__ import annotations

import torch

from gpuguide.attention.gpu import gpu_of


def why_not_cudnn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, masked: bool) -> str | None:
    """Return a sentence on a wrong result of cuDNN's kernel that others reported for such a call, or nothing.

    Sources: https://github.com/pytorch/pytorch/issues/196678 and its mend https://github.com/pytorch/pytorch/pull/196861,
    https://github.com/NVIDIA/cudnn-frontend/issues/1072, https://github.com/pytorch/pytorch/issues/193893.
    """
    if not q.is_cuda:
        return None
    gpu, queries, keys = gpu_of(q.device.index), q.shape[2], k.shape[2]
    hopper, differentiated = gpu.capability[0] == 9, gradients_asked(q, k, v)
    if hopper and differentiated and masked and keys % 128 == 64 and gpu.cudnn < 92600:
        return (
            "cuDNN is left out: before 9.26 its backward pass can give NaN on this GPU where there is a mask and the "
            "number of keys leaves 64 when divided by 128 (pytorch#196678)."
        )
    if hopper and differentiated and queries == 1:
        return "cuDNN is left out: its backward pass can give NaN for a single query (NVIDIA/cudnn-frontend#1072)."
    if gpu.capability[0] == 10 and queries == 1 and gpu.cudnn >= 91900:
        return "cuDNN is left out: from 9.19 on it is wrong for a single query on this GPU (pytorch#193893)."
    return None


def gradients_asked(*tensors: torch.Tensor) -> bool:
    """Return whether autograd will want the gradient of one of some tensors."""
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
