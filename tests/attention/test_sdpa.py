"""What PyTorch's own attention does: the facts that our use of it, and rows of the ledger, rest on."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from gpuguide.attention import reference


def inputs(queries: int = 4, keys: int = 4) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 2, length, 8, generator=generator) for length in (queries, keys, keys))
    return q, k, v


def test_is_causal_starts_at_the_first_key() -> None:
    tensors = inputs(3, 5)
    found = functional.scaled_dot_product_attention(*tensors, is_causal=True)
    top_left = torch.ones(3, 5, dtype=torch.bool).tril()
    torch.testing.assert_close(found, reference.attention(*tensors, mask=top_left))
    assert not torch.allclose(found, reference.attention(*tensors, causal=True))


def test_a_mask_together_with_is_causal_raises_or_not_by_the_kernel() -> None:
    tensors, mask = inputs(), torch.ones(4, 4, dtype=torch.bool)
    mask[3, 0] = False
    with (
        sdpa_kernel(SDPBackend.MATH),
        pytest.raises(RuntimeError, match="Explicit attn_mask should not be set when is_causal=True"),
    ):
        functional.scaled_dot_product_attention(*tensors, attn_mask=mask, is_causal=True)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):  # on a processor this name stands for its fused kernel
        found = functional.scaled_dot_product_attention(*tensors, attn_mask=mask, is_causal=True)
    torch.testing.assert_close(found, reference.attention(*tensors, mask=mask, causal=True))


def test_the_old_way_to_choose_a_kernel_warns() -> None:
    with pytest.warns(FutureWarning, match="sdp_kernel.*deprecated"), torch.backends.cuda.sdp_kernel(enable_flash=True):
        pass


def test_there_are_four_kernels() -> None:
    kernels = {"MATH", "FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION"}
    assert kernels <= set(SDPBackend.__members__)
