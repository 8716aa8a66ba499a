"""Element-wise operations, step by step and fused, launched by the host and in a graph."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

import torch

from gpuguide.benchmarks.fusion.launching import in_graph, launched_by_host, mark_steps
from gpuguide.fusion import reference
from gpuguide.fusion.counting import count_kernels
from gpuguide.hardware.device import Device
from gpuguide.measure import records
from gpuguide.measure.benchmark import Benchmark, Contender, Keys, Work
from gpuguide.measure.records import Metric, Rate

OPERATIONS = {
    "add-four": ("add_four", 4),
    "add-mul-relu-div": ("add_multiply_relu_divide", 4),
    "chain-24": ("tanh_chain", 3),
    "gelu": ("gelu", 1),
}
"""Name of each operation's functions, and how many arrays it reads"""
SIZES = {"add-four": (14, 20, 26), "chain-24": (14, 20, 26), "add-mul-relu-div": (26,), "gelu": (26,)}
"""Powers of two of elements that each operation is measured with; the largest are beyond any cache"""
ACCEPTED = 2e-2
"""Largest accepted error against float64, as a ratio of norms, of chains that are rounded to bf16 after each step"""
CHECKED = 2**16
ELEMENT_SIZE = 2

Function = Callable[..., torch.Tensor]


def written_out(name: str) -> Function:
    """Return the operation in plain PyTorch."""
    function: Function = getattr(reference, OPERATIONS[name][0])
    return function


def eager(name: str) -> Function:
    """Return the same, first of the contenders of a case: what was compiled for the last one is forgotten."""
    torch.compiler.reset()  # after eight shapes the compiler would give up on one function
    return written_out(name)


def compiled(name: str) -> Function:
    """Return the operation compiled for the one shape that it is called with next."""
    return torch.compile(written_out(name), dynamic=False, fullgraph=True)


def reduce_overhead(name: str) -> Function:
    """Return the operation compiled, in a graph that the compiler captures."""
    return mark_steps(torch.compile(written_out(name), dynamic=False, fullgraph=True, mode="reduce-overhead"))


def ours(name: str) -> Function:
    """Return the operation in one Triton kernel."""
    from gpuguide.fusion import elementwise

    function: Function = getattr(elementwise, OPERATIONS[name][0])
    return function


def work(make: Callable[[str], Function], graph: bool, device: Device, keys: Keys) -> Work:
    """Apply an operation to arrays of random numbers."""
    name, elements = str(keys["operation"]), int(keys["elements"])
    count = OPERATIONS[name][1]
    inputs = [torch.rand(elements, device=device.torch_device).add_(0.5).bfloat16() for _ in range(count)]
    function = make(name)

    def step() -> torch.Tensor:
        return function(*inputs)

    def check() -> None:
        right = written_out(name)(*(each[:CHECKED].double() for each in inputs))
        error = float((step()[:CHECKED].double() - right).norm() / right.norm())
        assert error <= ACCEPTED, f"the relative error is {error:.1e}, and {ACCEPTED:.0e} is accepted"

    def further() -> Mapping[str, Metric]:
        return {"kernels": records.metric("1", [count_kernels(step).kernels])}

    moved = (count + 1) * elements * ELEMENT_SIZE
    sampler = in_graph(step) if graph else launched_by_host(step)
    return Work([step], check, {"bandwidth": Rate("B/s", moved)}, sample=sampler, further=further)


def contender(make: Callable[[str], Function], graph: bool) -> Contender:
    """Return a contender that needs a GPU."""
    return Contender(functools.partial(work, make, graph), frozenset({"gpu", "bf16"}))


FUSED_SUM = Benchmark(
    name="fused-sum",
    title="Element-wise chains, step by step and fused",
    question="What do fusion and a CUDA graph gain for chains of element-wise operations, from small to large?",
    contenders={
        "eager": contender(eager, False),
        "eager-graph": contender(written_out, True),
        "compile": contender(compiled, False),
        "reduce-overhead": contender(reduce_overhead, False),
        "compile-replayed": contender(compiled, True),
        "gpuguide": contender(ours, True),
    },
    cases=lambda device: [
        {"operation": name, "elements": 2**power} for name, powers in SIZES.items() for power in powers if device.is_gpu
    ],
    memory=lambda keys: 40.0 * ELEMENT_SIZE * int(keys["elements"]),
    budget=0.1,
    end=torch.compiler.reset,
)
