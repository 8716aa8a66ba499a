"""Does a compiled block always compute the same gradients? Several processes, each with caches of its own. Stores nothing.

Once (fp16, compiled) the gradient check of train-step-precision failed with 5.1e-3 where 6.6e-4 is usual, and once a
compiled training in bf16 took another course from its first step on: its first loss was nearer to that of fp32 by
0.23e-3, its gradients worse. Not the cause: sums of cuBLAS in reduced precision; the hash seed (on a CPU, Inductor writes
the same code under four). Not excluded: the precisions before it in the same process; a loss scale that had to fall
(gradients then underflow: 5e-3 would take about five skipped steps); other code, or other choices by timing.

Each process goes through the precisions as the benchmark does, and prints for each: the error, the scale and how many
steps were skipped to find it, the first loss, the parameters that are most in error, and a digest of the generated
kernels. `python compiled_gradients.py 4 fp32,tf32,fp16,bf16` (about 70 s, four at once), or `... 6 fp16` (40 s). The code
is kept in /tmp/log/code-*.py.
"""

import hashlib, math, os, re, subprocess, sys
from pathlib import Path


def generated(folder):
    return [p.read_text() for p in Path(folder).rglob("*.py") if "async_compile" in p.read_text()]


def digest(codes):
    plain = (re.sub(r"#.*|0x[0-9a-f]+|/tmp\S*|\bc[a-z0-9]{50}\b", "", code) for code in codes)
    return hashlib.md5("\n".join(sorted(plain)).encode()).hexdigest()[:8]


def errors(run, training):
    """As Run.error_of_gradients, with what it went through."""
    batch, attempts = run.steps[0], []
    with run.without_learning():
        while not attempts or not attempts[-1].stepped:
            attempts.append(training.train_step(run.training, [(batch[:, :-1], batch[:, 1:])], run.loss_sum))
    wrong = right = 0.0
    each = []
    names = [name for name, _ in run.model.named_parameters()]
    exacts = training.gradients_in_float64(run.model, batch)
    for name, found, exact in zip(names, run.model.parameters(), exacts, strict=True):
        off, size = float((found.grad.double() - exact).square().sum()), float(exact.square().sum())
        wrong, right = wrong + off, right + size
        each.append((off, math.sqrt(off / size), name))
    run.model.zero_grad(set_to_none=True)
    worst = ", ".join(f"{name} {ratio:.1e}" for _, ratio, name in sorted(each, reverse=True)[:3])
    return math.sqrt(wrong / right), [a.scale for a in attempts], worst


def child(number, precisions):
    import torch
    from gpuguide.benchmarks.precision import training
    seen = 0
    for precision in precisions.split(","):
        keys = {"precision": precision, "batch": 8, "seq_len": 1024}
        for prepare in (training.prepared, training.compiled):
            torch.manual_seed(0)
            run = training.Run(prepare, keys, "cuda")
            error, scales, worst = errors(run, training)
            run.step()
            line = f"{number} {precision:9} {prepare.__name__:8} gradients {error:.2e}, scales {scales}, first loss {run.outcomes[0].loss:.6f}; {worst}"
            if prepare is training.compiled:
                codes = generated(os.environ["TORCHINDUCTOR_CACHE_DIR"])
                line += f"; {len(codes) - seen} files, all code {digest(codes)}"
                seen = len(codes)
                Path(f"/tmp/log/code-{number}-{precision}.py").write_text("\n".join(sorted(codes)))
            print(line, flush=True)
            del run


if len(sys.argv) == 4:
    child(sys.argv[3], sys.argv[2])
else:
    Path("/tmp/log").mkdir(exist_ok=True)
    running = []
    for number in range(int(sys.argv[1])):
        folder = f"/tmp/cache-gradients-{number}"
        env = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": folder + "/ind", "TRITON_CACHE_DIR": folder + "/tri"}
        running.append(subprocess.Popen([sys.executable, __file__, "child", sys.argv[2], str(number)], env=env))
    for each in running:
        each.wait()
