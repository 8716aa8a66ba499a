"""One layer's attention to be computed, and how far a result is from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from gpuguide.attention import cost
from gpuguide.measure.benchmark import Keys

TOKENS = 16384
"""Tokens in all sequences of a batch together"""
WIDTH = 2048
"""Heads times their size"""
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
ELEMENT_SIZE = 2
"""Bytes of a number in both formats"""
CHECKED_ROWS_AT_ONCE = 1024
ACCEPTED_ERROR = {"forward": 1e-2, "backward": 3e-2, "forward-backward": 3e-2}
"""Largest accepted relative error against fp32. The kernels' own tests are stricter; this finds what is wrong."""
FLOPS = {"forward": 1.0, "backward": 2.5, "forward-backward": 3.5}
"""Operations for one of the forward pass: it has two matmuls, and the backward pass has five"""

Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""Function of q ``(batch, heads, seq_len, head_dim)``, k and v (with ``kv_heads``); returns a tensor like q"""
Tensors = tuple[torch.Tensor, ...]


def shape(keys: Keys, *names: str) -> tuple[int, ...]:
    """Return the values of some keys, which must be integers."""
    return tuple(int(keys[name]) for name in names)


def attention_flops(keys: Keys) -> float:
    """Return the operations of one call, counted for the pairs that a mask leaves."""
    batch, heads, seq_len, head_dim = shape(keys, "batch", "heads", "seq_len", "head_dim")
    forward = cost.forward_flops(cost.problem(batch, heads, seq_len, head_dim, causal=bool(keys["causal"])))
    return forward * FLOPS[str(keys["pass"])]


@dataclass(frozen=True)
class AttentionTensors:
    """Queries, keys, values and the gradient of the output, all N(0, 1)."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    d_out: torch.Tensor
    causal: bool

    @classmethod
    def draw(cls, keys: Keys, device: str, *, positions_first: bool = False) -> AttentionTensors:
        """Draw tensors, contiguous or, with ``positions_first``, transposed from (batch, seq_len, heads, head_dim)."""
        batch, heads, kv_heads = shape(keys, "batch", "heads", "kv_heads")
        seq_len, head_dim = shape(keys, "seq_len", "head_dim")

        def draw_heads(count: int) -> torch.Tensor:
            order = (batch, seq_len, count, head_dim) if positions_first else (batch, count, seq_len, head_dim)
            drawn = torch.randn(order, dtype=DTYPES[str(keys["dtype"])], device=device)
            return drawn.transpose(1, 2) if positions_first else drawn

        return cls(
            draw_heads(heads), draw_heads(kv_heads), draw_heads(kv_heads), draw_heads(heads), bool(keys["causal"])
        )

    def forward(self, attend: Attend) -> Tensors:
        """Return the output alone, as in inference: nothing is kept for gradients."""
        with torch.no_grad():
            return (attend(self.q, self.k, self.v),)

    def with_gradients(self, attend: Attend) -> Tensors:
        """Return the output and the gradients of q, k and v."""
        inputs = [part.detach().requires_grad_() for part in (self.q, self.k, self.v)]
        out = attend(*inputs)
        return (out.detach(), *torch.autograd.grad(out, inputs, self.d_out))


def exact(problem: AttentionTensors, batch: int, kv_head: int) -> Tensors:
    """Return output and gradients in fp32, of one head of keys and the heads of queries that share it.

    Returns
    -------
    tuple of tensors
        The output and dQ, ``(group, seq_len, head_dim)``; dK and dV, ``(seq_len, head_dim)``.
    """
    group = problem.q.shape[1] // problem.k.shape[1]
    heads = slice(kv_head * group, (kv_head + 1) * group)
    k, v = problem.k[batch, kv_head].float(), problem.v[batch, kv_head].float()
    d_k, d_v = torch.zeros_like(k), torch.zeros_like(v)
    seq_len, head_dim = k.shape
    position = torch.arange(seq_len, device=k.device)
    out, d_q = [], []
    for q_head, d_head in zip(problem.q[batch, heads].float(), problem.d_out[batch, heads].float(), strict=True):
        parts = (q_head, d_head, position)
        for q, d_out, row in zip(*(part.split(CHECKED_ROWS_AT_ONCE) for part in parts), strict=True):
            scores = q @ k.t() * head_dim**-0.5
            if problem.causal:
                scores.masked_fill_(position > row[:, None], -torch.inf)
            weights = torch.softmax(scores, dim=-1)
            result = weights @ v
            d_scores = weights * (d_out @ v.t() - (d_out * result).sum(-1, keepdim=True)) * head_dim**-0.5
            out.append(result)
            d_q.append(d_scores @ k)
            d_k.addmm_(d_scores.t(), q)
            d_v.addmm_(weights.t(), d_out)
    whole = (group, seq_len, head_dim)
    return torch.cat(out).view(whole), torch.cat(d_q).view(whole), d_k, d_v


def relative_errors(problem: AttentionTensors, results: Tensors) -> list[float]:
    """Return the error of each tensor that was returned against fp32, as a ratio of norms, on the first and last heads.

    In their order: of the output, and of the gradients of q, k and v if there are any.
    """
    batches, kv_heads = problem.k.shape[:2]
    group = problem.q.shape[1] // kv_heads
    error_squares, exact_squares = torch.zeros(len(results)), torch.zeros(len(results))
    for batch, kv_head in {(0, 0), (batches - 1, kv_heads - 1)}:
        heads = slice(kv_head * group, (kv_head + 1) * group)
        places = (heads, heads, kv_head, kv_head)
        for index, (found, wanted) in enumerate(zip(results, exact(problem, batch, kv_head), strict=False)):
            error_squares[index] += (found[batch, places[index]].float() - wanted).square().sum().cpu()
            exact_squares[index] += wanted.square().sum().cpu()
    return [float(error) for error in (error_squares / exact_squares).sqrt()]


def check_errors(errors: Sequence[float], keys: Keys) -> None:
    """Check that all errors are as small as the pass lets one expect; NaN is not."""
    accepted, error = ACCEPTED_ERROR[str(keys["pass"])], max(errors, key=lambda error: (error != error, error))
    assert error <= accepted, f"the relative error is {error:.1e}, and at most {accepted:.0e} is accepted"
