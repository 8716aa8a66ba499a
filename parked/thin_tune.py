"""GB/s of thin products: torch against our kernels in a few tilings, replayed from a CUDA graph. Stores nothing; 60 s."""

import itertools
import torch
import triton
from gpuguide.lora.thin import kernels as K
from gpuguide.lora.thin import tiles as T

M = 8192
GPT2 = [(768, 2304), (768, 768), (768, 3072), (3072, 768)]
LLAMA = [(2048, 3072), (2048, 2048), (2048, 16384), (8192, 2048)]
sides = sorted({side for pair in GPT2 for side in pair}), sorted({side for pair in LLAMA for side in pair})


def seconds(calls):
    """Return the time of one call, over as many copies as do not fit the L2 cache."""
    for call in calls: call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls: call()
    graph.replay(); torch.cuda.synchronize()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times = []
    for _ in range(5):
        start.record(); graph.replay(); end.record(); torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 1e-3 / len(calls))
    return min(times)


def narrowed_with(rows, columns, warps, stages):
    def call(x, thin):
        out = x.new_empty(len(x), thin.shape[1])
        K.narrowed_kernel[(triton.cdiv(len(x), rows),)](x, thin, out, *x.shape, thin.shape[1], x.stride(0), *thin.stride(), 1.0, rows, columns, max(16, triton.next_power_of_2(thin.shape[1])), num_warps=warps, num_stages=stages)
    return call


def summed_with(rows, columns, programs, stages):
    def call(x, thin):
        blocks = triton.cdiv(x.shape[1], columns)
        parts = max(1, min(programs // blocks, triton.cdiv(len(x), rows)))
        found = torch.empty(parts, x.shape[1], thin.shape[1], device=x.device)
        stretch = rows * triton.cdiv(triton.cdiv(len(x), parts), rows)
        K.summed_kernel[(blocks, parts)](x, thin, found, *x.shape, thin.shape[1], stretch, x.stride(0), thin.stride(0), *found.stride(), rows, columns, max(16, triton.next_power_of_2(thin.shape[1])), num_warps=4, num_stages=stages)
        return found.sum(0).to(x.dtype)
    return call


for rank, group in itertools.product((16, 64), sides):
    for side in group:
        copies = max(2, int(2 * 60e6 / (M * side * 2)) + 1)
        xs = [torch.randn(M, side, device="cuda", dtype=torch.bfloat16) for _ in range(copies)]
        tall, wide = (torch.randn(n, rank, device="cuda", dtype=torch.bfloat16) for n in (side, M))
        size = M * side * 2
        def show(name, call, other):
            try: print(f"{side:6d} rank {rank:3d} {name:28s} {size / seconds([lambda x=x: call(x, other) for x in xs]) / 1e12:5.2f} TB/s", flush=True)
            except Exception as error: print(side, rank, name, repr(error)[:100], flush=True)
        show("narrowed torch", torch.mm, tall)
        for setting in ((64, 128, 4, 4), (32, 128, 4, 4), (64, 64, 4, 4), (64, 128, 4, 3), (64, 256, 4, 2), (128, 64, 8, 4)):
            show(f"narrowed {setting}", narrowed_with(*setting), tall)
        show("summed torch", lambda x, t: x.t() @ t, wide)
        for setting in ((64, 64, 264, 4), (64, 64, 528, 4), (128, 64, 264, 3), (64, 128, 264, 4), (128, 64, 132, 4)):
            show(f"summed {setting}", summed_with(*setting), wide)
