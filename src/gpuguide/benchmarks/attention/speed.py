"""Attention: one layer's softmax(QKᵀ)V, forward and with its gradients.

Not every contender is measured on every case. The naive formula does the same work with and without a causal mask, so
it is measured with one. What is compiled anew for each shape takes some seconds every time; it is measured at one
short and one long sequence.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from gpuguide.attention import cost, reference
from gpuguide.hardware.device import Device
from gpuguide.measure import records
from gpuguide.measure.benchmark import Benchmark, Contender, Keys, Work, beyond_memory, powers_of_two
from gpuguide.measure.records import Metric, Rate

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
ELEMENT_SIZE = 2
"""Bytes of a number in both formats"""
TOKENS = 16384
WIDTH = 2048
"""Heads times their size"""
SEQ_LENS = powers_of_two(512, 16384)
PASSES = ("forward", "forward-backward")
COMPILED_SEQ_LENS = (1024, 8192)
CHECKED_ROWS_AT_ONCE = 1024
ACCEPTED_ERROR = {"forward": 1e-2, "backward": 3e-2, "forward-backward": 3e-2}
"""Largest accepted relative error against fp32. The kernels' own tests are stricter; this finds what is wrong."""
FLOPS = {"forward": 1.0, "backward": 2.5, "forward-backward": 3.5}
"""Operations for one of the forward pass: it has two products of matrices, and the backward pass has five"""
NAIVE_MATRICES = {"forward": 3, "forward-backward": 6}
"""How many matrices of the scores' size the naive formula holds at its highest"""

Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""Takes q ``(batch, heads, seq_len, head_dim)`` and k and v with ``kv_heads``, and returns what q has the shape of"""
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
class Problem:
    """Queries, keys, values and the gradient of the output, all N(0, 1)."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    d_out: torch.Tensor
    causal: bool

    @classmethod
    def of(cls, keys: Keys, device: str) -> Problem:
        """Draw one."""
        batch, heads, kv_heads = shape(keys, "batch", "heads", "kv_heads")
        seq_len, head_dim = shape(keys, "seq_len", "head_dim")

        def draw(count: int) -> torch.Tensor:
            return torch.randn(batch, count, seq_len, head_dim, dtype=DTYPES[str(keys["dtype"])], device=device)

        return cls(draw(heads), draw(kv_heads), draw(kv_heads), draw(heads), bool(keys["causal"]))

    def forward(self, attend: Attend) -> Tensors:
        """Return the output alone, as in inference: nothing is kept for gradients."""
        with torch.no_grad():
            return (attend(self.q, self.k, self.v),)

    def with_gradients(self, attend: Attend) -> Tensors:
        """Return the output and the gradients of q, k and v."""
        inputs = [part.detach().requires_grad_() for part in (self.q, self.k, self.v)]
        out = attend(*inputs)
        return (out.detach(), *torch.autograd.grad(out, inputs, self.d_out))


def exact(problem: Problem, batch: int, kv_head: int) -> Tensors:
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


def relative_error(problem: Problem, results: Tensors) -> float:
    """Return the largest error of what was returned against fp32, as a ratio of norms, on the first and last heads."""
    batches, kv_heads = problem.k.shape[:2]
    group = problem.q.shape[1] // kv_heads
    wrong, right = torch.zeros(len(results)), torch.zeros(len(results))
    for batch, kv_head in {(0, 0), (batches - 1, kv_heads - 1)}:
        heads = slice(kv_head * group, (kv_head + 1) * group)
        places = (heads, heads, kv_head, kv_head)
        for index, (found, wanted) in enumerate(zip(results, exact(problem, batch, kv_head), strict=False)):
            wrong[index] += (found[batch, places[index]].float() - wanted).square().sum().cpu()
            right[index] += wanted.square().sum().cpu()
    return float((wrong / right).sqrt().max())


def check_error(error: float, keys: Keys) -> None:
    """Check that an error is as small as the pass lets one expect."""
    accepted = ACCEPTED_ERROR[str(keys["pass"])]
    assert error <= accepted, f"the relative error is {error:.1e}, and at most {accepted:.0e} is accepted"


# --- contenders ------------------------------------------------------------------------------------------


def ours(device: Device, keys: Keys) -> Attend:
    """Return our kernels."""
    from gpuguide.attention import triton_flash

    return functools.partial(triton_flash.flash_attention, causal=bool(keys["causal"]))


def ours_by_hand(device: Device, keys: Keys) -> Attend:
    """Return the same with the forward pass whose schedule is written by hand."""
    from gpuguide.attention import gluon_flash

    return functools.partial(gluon_flash.flash_attention, causal=bool(keys["causal"]))


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


def flex(device: Device, keys: Keys) -> Attend:
    """Return FlexAttention, to be compiled for one shape, with the blocks of a causal mask found beforehand."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    def is_visible(batch: torch.Tensor, head: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return query >= key

    (seq_len,) = shape(keys, "seq_len")
    mask = create_block_mask(is_visible, None, None, seq_len, seq_len, device=device.torch_device)
    torch.compiler.reset()
    attend = torch.compile(flex_attention, dynamic=False)
    return lambda q, k, v: attend(q, k, v, block_mask=mask)


def naive(device: Device, keys: Keys) -> Attend:
    """Return the formula as it reads, with all scores in memory."""
    return functools.partial(reference.naive_attention, causal=bool(keys["causal"]))


def naive_compiled(device: Device, keys: Keys) -> Attend:
    """Return the same, to be compiled for the one shape that it is called with next."""
    torch.compiler.reset()  # after eight shapes the compiler would give up on one function
    return torch.compile(naive(device, keys), dynamic=False)


# --- what is left out ------------------------------------------------------------------------------------


def is_grouped(keys: Keys) -> bool:
    """Return whether several heads of queries share one of keys."""
    return keys["heads"] != keys["kv_heads"]


def hopper_only(device: Device, keys: Keys) -> str | None:
    """Say no to other generations of GPUs."""
    if device.capability and device.capability[0] == 9:
        return None
    return "this schedule is written in instructions that only GPUs of compute capability 9 have"


def ungrouped_only(device: Device, keys: Keys) -> str | None:
    """Say no to heads that share keys."""
    return "this backend has no grouped-query attention" if is_grouped(keys) else None


def compiled_cases_only(device: Device, keys: Keys) -> str | None:
    """Say no to most shapes, because each is compiled anew."""
    if keys["causal"] and keys["seq_len"] in COMPILED_SEQ_LENS and not is_grouped(keys):
        return None
    lengths = " and ".join(map(str, COMPILED_SEQ_LENS))
    return f"is compiled anew for each shape, and is measured at lengths {lengths} with a causal mask only"


def naive_cases_only(device: Device, keys: Keys, among: int = 1) -> str | None:
    """Say no where the mask would change nothing, and where the scores of ``among`` contenders do not fit."""
    if is_grouped(keys):
        return "the naive formula is measured where every head has keys of its own"
    if not keys["causal"]:
        return "the naive formula does the same work without a mask as with one, and is measured with it"
    batch, heads, seq_len = shape(keys, "batch", "heads", "seq_len")
    scores = ELEMENT_SIZE * batch * heads * seq_len**2
    return beyond_memory(bytes_needed(keys) + among * NAIVE_MATRICES[str(keys["pass"])] * scores, device)


# --- work ------------------------------------------------------------------------------------------------


def work(make: Callable[[Device, Keys], Attend], device: Device, keys: Keys) -> Work:
    """Attend, and take the gradients if the case asks for them."""
    if device.backend == "fake":
        return Work(calls=[lambda: None])
    problem, attend = Problem.of(keys, device.torch_device), make(device, keys)
    run = problem.forward if keys["pass"] == "forward" else problem.with_gradients

    def call() -> Tensors:
        return run(attend)

    call()  # compiles
    error = relative_error(problem, call())
    found = {"error": records.metric("1", [error])}
    if device.backend == "cuda":
        found["peak_memory"] = records.metric("B", [extra_memory(call)])

    def further() -> Mapping[str, Metric]:
        return found

    return Work(
        [call],
        lambda: check_error(error, keys),
        {"throughput": Rate("FLOP/s", attention_flops(keys))},
        timing="graph",
        footprint=sum(part.nbytes for part in (problem.q, problem.k, problem.v, problem.d_out)),
        further=further,
    )


def extra_memory(call: Callable[[], Tensors]) -> int:
    """Return the bytes that a call takes at its highest, beside its inputs and what it returns."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    returned = sum(result.nbytes for result in call())
    return torch.cuda.max_memory_allocated() - before - returned


def bytes_needed(keys: Keys) -> float:
    """Return roughly what a case takes without the naive formula.

    Each contender holds its inputs, and a graph with its outputs, fp32 sums of dQ and as much again.
    """
    batch, heads, seq_len, head_dim = shape(keys, "batch", "heads", "seq_len", "head_dim")
    one = ELEMENT_SIZE * batch * heads * seq_len * head_dim
    checking = 5 * 4 * CHECKED_ROWS_AT_ONCE * seq_len
    return len(ATTENTION.contenders) * (4 + 8) * one + checking


def case(device: Device, **keys: int | bool | str) -> Keys:
    """Return a case's keys in their order, in the 16-bit format that the device computes in."""
    names = ("pass", "head_dim", "seq_len", "causal", "batch", "heads", "kv_heads")
    return {**{name: keys[name] for name in names}, "dtype": "bf16" if "bf16" in device.supports else "fp16"}


def cases(device: Device) -> Sequence[Keys]:
    """Return sequences from short to long, GPT-2 and grouped heads; on a CPU none, whose backends these are not."""
    if not device.is_gpu:
        return []
    square = [
        {"head_dim": head_dim, "seq_len": seq_len, "causal": causal, "batch": TOKENS // seq_len}
        | {"heads": WIDTH // head_dim, "kv_heads": WIDTH // head_dim}
        for head_dim in (64, 128)
        for causal in (False, True)
        for seq_len in SEQ_LENS
    ]
    gpt2 = [
        {"head_dim": 64, "seq_len": seq_len, "causal": True, "batch": 64, "heads": 12, "kv_heads": 12}
        for seq_len in (512, 1024)
    ]
    grouped = [
        {"head_dim": 128, "seq_len": seq_len, "causal": True, "batch": TOKENS // seq_len, "heads": 32, "kv_heads": 8}
        for seq_len in (2048, 8192)
    ]
    return [case(device, **{"pass": name}, **keys) for name in PASSES for keys in (*square, *gpt2, *grouped)]


ON_GPU = frozenset({"gpu"})
TENSOR_CORES = frozenset({"gpu", "fp16"})
AMPERE = frozenset({"gpu", "flash-attention"})

ATTENTION = Benchmark(
    name="attention",
    title="Attention, forward and backward",
    question="How fast is attention by tiles, and what does the formula as it reads cost in time and memory?",
    contenders={
        "gpuguide-triton": Contender(lambda device, keys: work(ours, device, keys), TENSOR_CORES),
        "gpuguide-gluon": Contender(lambda device, keys: work(ours_by_hand, device, keys), TENSOR_CORES, hopper_only),
        "sdpa-flash": Contender(lambda device, keys: work(library("FLASH_ATTENTION"), device, keys), AMPERE),
        "sdpa-cudnn": Contender(lambda device, keys: work(library("CUDNN_ATTENTION"), device, keys), AMPERE),
        "sdpa-efficient": Contender(
            lambda device, keys: work(library("EFFICIENT_ATTENTION"), device, keys), ON_GPU, ungrouped_only
        ),
        "flex": Contender(lambda device, keys: work(flex, device, keys), TENSOR_CORES, compiled_cases_only),
        "naive": Contender(lambda device, keys: work(naive, device, keys), ON_GPU, naive_cases_only),
        "naive-compile": Contender(
            lambda device, keys: work(naive_compiled, device, keys),
            TENSOR_CORES,
            lambda device, keys: compiled_cases_only(device, keys) or naive_cases_only(device, keys, among=2),
        ),
    },
    cases=cases,
    memory=lambda keys: bytes_needed(keys),
    budget=0.1,
)
