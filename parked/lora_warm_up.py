"""Fill the compilers' caches for benchmarks in parallel processes; prints what failed. Stores nothing.

`python lora_warm_up.py lora-step lora-inference`; with HALF=0/2 and HALF=1/2 two GPUs take half of it each.
"""

import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

COMPILED = {"gpuguide", "peft-compile", "peft-compile-chunked-loss", "full-finetune-compile", "merged", "unmerged", "base"}
NEED = {"llama-1b-shape": 22, "gpt2-medium": 12, "gpt2-small": 7}  # GiB a process; all weights of the Llama take 42
ROOM = 125
AT_ONCE = 12


def child(name: str, contender: str, place: int) -> None:
    import torch

    from gpuguide.hardware import device as devices
    from gpuguide.measure import benchmark

    declared, device = benchmark.get(name), devices.choose("gpu")
    keys = declared.cases(device)[place]
    torch.manual_seed(0)
    declared.contenders[contender].build(device, keys)
    torch.cuda.synchronize()


def main() -> None:
    from gpuguide.hardware import device as devices
    from gpuguide.measure import benchmark

    device = devices.choose("gpu")
    jobs = []
    for name in sys.argv[1:]:
        declared = benchmark.get(name)
        for place, keys in enumerate(declared.cases(device)):
            for contender, each in declared.contenders.items():
                if contender in COMPILED and not each.leaves_out(device, keys):
                    large = contender.startswith("full") and keys["model"].startswith("llama")
                    jobs.append((42 if large else NEED[keys["model"]], name, contender, place, keys))
    jobs.sort(key=lambda job: (-job[0], job[1] != "lora-step", job[2] != "full-finetune-compile"))
    which, halves = map(int, os.environ.get("HALF", "0/1").split("/"))
    jobs = jobs[which::halves]
    free, changed, begun = [ROOM], threading.Condition(), time.time()

    def run(job: tuple) -> None:
        need, name, contender, place, keys = job
        with changed:
            changed.wait_for(lambda: free[0] >= need)
            free[0] -= need
        at = time.time()
        words = [sys.executable, __file__, "child", name, contender, str(place)]
        done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "2", "TORCHINDUCTOR_COMPILE_THREADS": "4"})
        with changed:
            free[0] += need
            changed.notify_all()
        last = "" if done.returncode == 0 else " | ".join(done.stderr.strip().splitlines()[-6:])
        print(f"[{time.time() - begun:5.0f}] {time.time() - at:4.0f} s {name} {contender} {keys['model']} {keys['targets']} {keys['rank']} b{keys['batch']} rc={done.returncode} {last}", flush=True)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(run, jobs))
    print(f"{len(jobs)} compiled in {time.time() - begun:.0f} s")


if __name__ == "__main__":
    child(*sys.argv[2:4], int(sys.argv[4])) if sys.argv[1] == "child" else main()
