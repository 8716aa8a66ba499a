"""Times and profiles of a step with adapters: variants.py ours+nothin, ours+llama, peft, chunked, full. Stores nothing.

All at once in the background, with mkdir -p /tmp/ready /tmp/log, COUNT=(how many) WAIT=95; each waits for the others to
have compiled, then they are timed one after the other. Profiles go to /tmp/log/prof-NAME.txt.
"""
import fcntl, importlib, statistics, sys, time
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from gpuguide.benchmarks.lora import contenders, problem, step as steps, reference
from gpuguide.hardware import device as devices
name = sys.argv[1]
which, *options = name.split("+")
model = "llama-1b-shape" if "llama" in options else "gpt2-small"
keys = {"model": model, "targets": "all", "rank": 16, "batch": 16, "seq_len": 512}
ORDER = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
P = importlib.import_module("gpuguide.lora.product.autograd")
if "nojoin" in options: P._is_joined = lambda *sizes, **named: False
if "noplace" in options:
    def apart(out, left, right):
        if torch.compiler.is_compiling(): return out + left @ right
        out.flatten(0, -2).addmm_(left.flatten(0, -2), right)
        return out
    P._sum_of_products = apart
if "nothin" in options:
    T = importlib.import_module("gpuguide.lora.product.thin")
    T.is_thin = lambda wide, thin: False
make = {"ours": contenders.ours, "full": contenders.full,
        "peft": lambda k, d: contenders.peft(k, d, contenders.COMPILED),
        "chunked": lambda k, d: contenders.peft(k, d, contenders.COMPILED, chunked=True)}[which]
def main():
    began = time.time()
    trained = make(keys, "cuda")
    if "tuned" in options:
        from dataclasses import replace
        object.__setattr__(trained, "settings", replace(trained.settings, mode="max-autotune-no-cudagraphs"))
    step = steps.step_of(trained, keys)
    tokens, targets = problem.batch(keys, "cuda")
    step(tokens, targets); torch.cuda.synchronize()
    compiled = time.time() - began
    open(f"/tmp/ready/{name}", "w")
    import os
    until = began + float(os.environ.get("WAIT", 70))
    while time.time() < until and len(os.listdir("/tmp/ready")) < int(os.environ["COUNT"]): time.sleep(.2)
    with open("/tmp/lock0", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        torch.cuda.reset_peak_memory_stats()
        for _ in range(10): step(tokens, targets)
        torch.cuda.synchronize()
        times = []
        for _ in range(40):
            t = time.perf_counter(); step(tokens, targets); torch.cuda.synchronize(); times.append(time.perf_counter() - t)
        err = {}
        try: err = steps.errors_of(trained, step, keys, "cuda")
        except Exception as e: err = repr(e)[:200]
        print(f"{name}: {1e3*statistics.median(times):.2f} ms, compiled {compiled:.0f} s, {torch.cuda.max_memory_allocated()/2**30:.2f} GiB {err}", flush=True)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as prof:
            for _ in range(5): step(tokens, targets)
            torch.cuda.synchronize()
        rows = sorted(prof.key_averages(), key=lambda e: -e.self_device_time_total)
        total = sum(e.self_device_time_total for e in rows) / 5e3
        with open(f"/tmp/log/prof-{name}.txt", "w") as f:
            print(f"{name}: {total:.2f} ms of kernels, {sum(e.count for e in rows)/5:.0f} kernels", file=f)
            for e in rows[:70]: print(f"{e.self_device_time_total/5e3:8.3f} ms {e.count/5:6.1f}  {e.key[:150]}", file=f)
if "cudnn" in options:
    with sdpa_kernel(ORDER, set_priority=True): main()
else: main()
