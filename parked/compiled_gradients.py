"""Does a compiled block always compute the same gradients? Several processes, each with caches of its own. Stores nothing.

Once (fp16, compiled) the gradient check of train-step-precision failed with 5.1e-3 where 6.6e-4 is usual, and once a
compiled training in bf16 took another course from its first step on: its first loss was nearer to that of fp32 by
0.23e-3, its gradients worse. Suspected: what Inductor generates differs from run to run (choices by timing on a busy
host). This prints the error, the first loss and a digest of the generated kernels of each process, and keeps the code
in /tmp/log/code-N.py. `python compiled_gradients.py fp16 6`, about 40 s with all at once.
"""

import hashlib, os, re, subprocess, sys
from pathlib import Path


def child(precision, number):
    import torch
    from gpuguide.benchmarks.precision import training
    keys = {"precision": precision, "batch": 8, "seq_len": 1024}
    torch.manual_seed(0)
    run = training.Run(training.compiled, keys, "cuda")
    error = run.error_of_gradients()
    run.step()
    code = "\n".join(sorted(p.read_text() for p in Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]).rglob("*.py") if "async_compile" in p.read_text()))
    Path(f"/tmp/log/code-{precision}-{number}.py").write_text(code)
    kernels = re.sub(r"#.*|0x[0-9a-f]+|'[^']*hash[^']*'", "", code)
    print(f"{precision} {number}: gradients {error:.2e}, first loss {run.outcomes[0].loss:.6f}, code {hashlib.md5(kernels.encode()).hexdigest()[:8]} ({len(code)})", flush=True)


if len(sys.argv) == 4:
    child(sys.argv[1], sys.argv[3])
else:
    Path("/tmp/log").mkdir(exist_ok=True)
    running = []
    for number in range(int(sys.argv[2])):
        folder = f"/tmp/cache-{sys.argv[1]}-{number}"
        env = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": folder + "/ind", "TRITON_CACHE_DIR": folder + "/tri"}
        running.append(subprocess.Popen([sys.executable, __file__, sys.argv[1], "child", str(number)], env=env))
    for each in running:
        each.wait()
