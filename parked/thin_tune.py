"""torch.mm against the thin kernels: GB/s by tile, in a CUDA graph, over copies larger than the L2 cache.

    PYTHONPATH=src TRITON_CACHE_DIR=/tmp/triton python parked/thin_tune.py [rank ...]      # about 60 s for 16 and 64
"""

import sys
import time

import torch

from gpuguide.lora.product import thin_kernels as k
from gpuguide.lora.product.thin_kernels import Tile

ROWS = 8192
ROTATED = 400e6  # bytes: eight times the L2 cache
GPT2 = ((768, 2304), (768, 768), (768, 3072), (3072, 768))  # in, out
LLAMA = ((2048, 3072), (2048, 2048), (2048, 16384), (8192, 2048))
NARROW = (Tile(64, 128), Tile(64, 256, stages=3), Tile(32, 128), Tile(64, 64, stages=6), Tile(64, 128, warps=8), Tile(64, 128, stages=6))
SUMS = (
    Tile(64, 128),
    Tile(64, 128, stages=3),
    Tile(64, 128, programs=1, stages=5),
    Tile(64, 128, programs=4, stages=3),
    Tile(128, 64, stages=3),
    Tile(128, 128, stages=3, warps=8),
)
DEVICE = "cuda"


def milliseconds(calls):
    """Time of one call: all are in one graph, one after another, with other inputs each."""
    for call in calls[:2]:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    found = []
    for _ in range(7):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        stop.record()
        stop.synchronize()
        found.append(start.elapsed_time(stop) / len(calls))
    return sorted(found)[3]


def off(one, other):
    return float((one.double() - other).norm() / other.norm())


def copies(*shapes):
    count = max(6, int(ROTATED // sum(2 * a * b for a, b in shapes)) + 1)
    return [[torch.randn(shape, dtype=torch.bfloat16, device=DEVICE) for shape in shapes] for _ in range(count)]


def line(name, ms, nbytes, error):
    print(f"   {name:60s} {1000 * ms:8.2f} us {nbytes / ms / 1e6:7.0f} GB/s  error {error:.1e}", flush=True)


def tried(name, make, nbytes, wanted, tiles):
    best = None
    for tile in tiles:
        try:
            found = make(tile)[0]()
            found = found if isinstance(found, tuple) else (found,)
            error = max(off(one, right) for one, right in zip(found, wanted, strict=True))
            ms = milliseconds(make(tile))
        except Exception as fault:
            print(f"   {tile}: {type(fault).__name__} {str(fault)[:120]}", flush=True)
            continue
        line(str(tile), ms, nbytes, error)
        best = min(best or (9e9, None), (ms, str(tile)))
    print(f"   BEST {name}: {1000 * best[0]:.2f} us, {nbytes / best[0] / 1e6:.0f} GB/s, {best[1]}", flush=True)


def narrow(inner, rank, by_rows):
    print(f"narrow {ROWS} x {inner} @ rank {rank} ({'A' if by_rows else 'B'})")
    given = copies((ROWS, inner))
    factor = torch.randn(rank, inner, dtype=torch.bfloat16, device=DEVICE)
    thin = factor.t() if by_rows else factor.t().contiguous()
    nbytes = 2 * (ROWS * inner + inner * rank + ROWS * rank)
    wanted = (2.0 * given[0][0].double() @ thin.double(),)
    line("torch.mm and mul", milliseconds([lambda x=x: (x @ thin) * 2.0 for (x,) in given]), nbytes, 0)
    line("torch.mm alone", milliseconds([lambda x=x: x @ thin for (x,) in given]), nbytes, 0)
    chosen = k.tile_for_narrow(ROWS, rank, k._multiprocessors(given[0][0].device))
    tiles = [chosen, *(tile for tile in NARROW if tile != chosen)]
    tried(
        f"narrow {inner} rank {rank}",
        lambda tile: [lambda x=x: k.narrow(x, thin, 2.0, tile) for (x,) in given],
        nbytes,
        wanted,
        tiles,
    )


def sums(reads, writes, rank):
    print(f"sums {ROWS} x ({writes} and {reads}), rank {rank}")
    given = copies((ROWS, writes), (ROWS, reads))
    hidden, through = (torch.randn(ROWS, rank, dtype=torch.bfloat16, device=DEVICE) for _ in range(2))
    nbytes = 2 * (ROWS * (reads + writes) + (reads + writes) * rank + 2 * ROWS * rank)
    y, x = given[0]
    wanted = y.double().t() @ hidden.double(), through.double().t() @ x.double()
    line(
        "torch.mm, both",
        milliseconds([lambda x=x, y=y: (y.t() @ hidden, through.t() @ x) for y, x in given]),
        nbytes,
        0,
    )
    chosen = k.tile_for_sums(rank)
    tiles = [chosen, *(tile for tile in SUMS if tile != chosen)]
    tried(
        f"sums {writes} {reads} rank {rank}",
        lambda tile: [lambda x=x, y=y: k.sums_over_rows(y, hidden, x, through, tile) for y, x in given],
        nbytes,
        wanted,
        tiles,
    )


def main():
    began = time.time()
    print(torch.cuda.get_device_name(), torch.__version__)
    large = torch.empty(2, 500_000_000, dtype=torch.bfloat16, device=DEVICE)
    ms = milliseconds([lambda: large[0].copy_(large[1])] * 5)
    print(f"copy: {2e9 / ms / 1e6:.0f} GB/s; one read: {1e9 / milliseconds([lambda: large[0].amax()] * 5) / 1e6:.0f} GB/s")
    del large
    for rank in map(int, sys.argv[1:] or ["16", "64"]):
        for shapes in (GPT2, LLAMA):
            for inner in sorted({size for pair in shapes for size in pair} if rank == 16 else {768, 3072, 2048, 8192}):
                if shapes is LLAMA and inner in (768,):
                    continue
                narrow(inner, rank, by_rows=inner in {reads for reads, _ in shapes})
            for reads, writes in shapes:
                sums(reads, writes, rank)
        print(f"{time.time() - began:.0f} s", flush=True)


main()
