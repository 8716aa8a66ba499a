"""Made-up records of lora-step, lora-inference and lora-task, to build page 36 before anything is measured. Never commit.

`python .gpu/draft_records.py` writes them beside the published ones; `python .gpu/draft_records.py --remove` removes them.
"""
import math, random, sys
from dataclasses import replace
from pathlib import Path
from gpuguide.hardware import device as devices
from gpuguide.measure import benchmark as B, digest, records, store
from gpuguide.measure.records import HARNESS_VERSION, Case, Record
from gpuguide.benchmarks.lora import task

FOLDER = Path("src/gpuguide/records/nvidia-h200")
names = ["lora-step", "lora-inference", "lora-task"]
if "--remove" in sys.argv:
    for n in names: (FOLDER / f"{n}.json").unlink(missing_ok=True)
    raise SystemExit
device = devices.fake("h200-sxm") if False else replace(devices.fake("h100-sxm"), memory=150 * 10**9)
base = records.read(FOLDER / "decode.json").runs[-1]; base = replace(base, versions={**base.versions, "peft": "0.21.0", "liger-kernel": "0.8.5", "transformers": "5.17.0"})
rng = random.Random(0)
def metric(unit, value, n=1, spread=0.01): return records.metric(unit, [value * (1 + spread * (rng.random() - .5)) for _ in range(n)], [5]*4 if n == 20 else [])
STEP = {"gpt2-small": dict(zip(["gpuguide","peft","peft-no-autocast","peft-compile","peft-compile-chunked-loss","full-finetune-compile"],[.0125,.0786,.045,.0155,.0138,.0185])),
 "gpt2-medium": dict(zip(["gpuguide","peft","peft-no-autocast","peft-compile","peft-compile-chunked-loss","full-finetune-compile"],[.031,.155,.09,.037,.034,.046])),
 "llama-1b-shape": dict(zip(["gpuguide","peft","peft-no-autocast","peft-compile","peft-compile-chunked-loss","peft-liger","full-finetune-compile"],[.085,.135,.12,.1,.094,.112,.124]))}
MEM = {"gpuguide":.55,"peft":1.0,"peft-no-autocast":.85,"peft-compile":.75,"peft-compile-chunked-loss":.56,"peft-liger":.6,"full-finetune-compile":.8}
def of_step(name, k):
    f = {"attention": .85, "all": 1}[k["targets"]] * (1 + (k["rank"] - 16) / 400)
    t = STEP[k["model"]].get(name)
    if t is None: return None
    m = {"gpt2-small": 9.5, "gpt2-medium": 21, "llama-1b-shape": 34}[k["model"]] * MEM[name] * 2**30
    return {"time": metric("s", t * f, 20), "peak_memory": metric("B", m), "error": metric("1", .012)}
def of_inference(name, k):
    t = {"gpt2-small": 3e-4, "llama-1b-shape": 2.3e-3}[k["model"]] * k["batch"] ** .8 * {"base": 1, "merged": 1.001, "unmerged": 1.12}[name]
    return {"time": metric("s", t, 20), "error": metric("1", .008)}
def of_task(name, k):
    best = {"lora": 1e-3, "full": 1e-4, "last-layer": 1e-3}[name]
    off = abs(math.log10(k["learning_rate"] / best))
    acc = {"lora": .862 - .05 * (4 / (k["rank"] + 3)) , "full": .868, "last-layer": .79}[name] - .09 * off ** 2 - .02 * abs(math.log2(k["alpha"] / k["rank"] / 2)) * .3
    acc = max(.24, acc - .04 * abs(math.log2(k["epochs"] / 4)) * .4 - (.03 if k["batch"] == 128 else 0) - (.12 if k["samples"] == 200 else .05 if k["samples"] else 0)) + .012 * (rng.random() - .5)
    loss = .5 + 3.5 * (.87 - acc); few = k["samples"] == 200
    steps = math.ceil(k["epochs"] * (k["samples"] or 1223) / k["batch"])
    curve = [3.9 * math.exp(-i / 3) + loss + (.03 * max(0, i - 8) if few else 0) for i in range(17)]
    tr = [3.5 * math.exp(-i / 3) + .05 for i in range(16)]
    if k["counted"] == "padding": tr = [6.2 * math.exp(-i / 2) + .9 for i in range(16)]
    m = {"time": metric("s", .0035, 20), "accuracy": metric("1", acc, 1, 0), "loss": metric("nat", curve[-1], 1, 0), "validation_accuracy": metric("1", acc - .01, 1, 0), "validation_loss": metric("nat", loss + .05, 1, 0),
      "training_accuracy": metric("1", .98, 1, 0), "training_loss": metric("nat", tr[-1], 1, 0), "training_time": metric("s", .0035 * steps), "loss_by_step": records.metric("nat", tr), "held_out_loss_by_step": records.metric("nat", curve),
      "held_out_accuracy_by_step": records.metric("1", [acc * (1 - .8 * math.exp(-i / 3)) for i in range(17)]), "peak_memory": metric("B", {"lora": 1.15, "full": 1.3, "last-layer": .9}[name] * 2**30)}
    if name == "full" and dict(k) == {**task.USUAL, "learning_rate": 1e-4}:
        m |= {"singular_values": records.metric("1", [math.exp(-i / 12) * .9 + .1 * (1 - i / 256) for i in range(256)]), "singular_values_of_weights": records.metric("1", [1 / (1 + i / 40) for i in range(256)]),
          "rank_for_half": records.metric("1", [9. + i % 5 for i in range(32)]), "rank_for_nine_tenths": records.metric("1", [90. + i for i in range(32)])}
        for r in (*task.RANKS, None):
            a = .868 - .6 * math.exp(-(r or 256) / 3); l = "matrices" if r is None else f"cut_to_{r}"
            m |= {f"accuracy_{l}": metric("1", a, 1, 0), f"loss_{l}": metric("nat", .5 + 3 * (.87 - a), 1, 0)}
    return m
for n, of in zip(names, (of_step, of_inference, of_task)):
    b = B.get(n); cases = []
    for k in b.cases(device):
        for c, d in b.contenders.items():
            why = d.leaves_out(device, k); m = None if why else of(c, k)
            cases.append(Case(dict(k), c, 0, "skipped", why or "x") if m is None else Case(dict(k), c, 0, "ok", correct="yes", measured=m, rates={}, libraries=d.libraries))
    r = Record(benchmark=n, device="nvidia-h200", harness_version=HARNESS_VERSION, code_digest=digest.benchmark_digest(n), runs=(base,), cases=tuple(cases))
    records.write(r, FOLDER / f"{n}.json"); print(n, len(cases))
