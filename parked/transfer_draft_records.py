"""Placeholder records to develop the page with. NEVER committed."""
import json, random
from dataclasses import replace
from pathlib import Path
from gpuguide.measure import records, digest, store
from gpuguide.measure.records import Case, Record, HARNESS_VERSION
base=store.published("training-memory")
run=replace(base.runs[-1], started_at="2026-11-25T00:00:00+00:00")
out=Path("src/gpuguide/records/nvidia-h200")
R=random.Random(0)
E={"new-head":(.52,.45,.363,.34),"soft-prompt":(.62,.53,.44,.40),"top-quarter":(.44,.33,.224,.205),"top-half":(.42,.31,.206,.19),"lora":(.43,.32,.226,.195),"full":(.42,.31,.216,.19),"new-head-full":(.60,.42,.23,.2),"full-layer-rates":(.42,.31,.210,.19),"from-scratch":(.62,.55,.446,.41),"zero-shot":(.76,)*4,"in-context":(.90,.91,.9,.9)}
OLD={"new-head":2.668,"soft-prompt":2.668,"zero-shot":2.668,"in-context":2.668,"top-quarter":4.0,"top-half":5.2,"lora":3.5,"full":9.6,"new-head-full":9.6,"full-layer-rates":7.1,"from-scratch":8.0}
T={"new-head":6e-5,"soft-prompt":1.7e-3,"top-quarter":9e-4,"top-half":1.2e-3,"lora":2.0e-3,"full":2.1e-3,"new-head-full":2.1e-3,"full-layer-rates":2.2e-3,"from-scratch":2.1e-3,"zero-shot":4e-4,"in-context":1.5e-3}
M={"new-head":70,"soft-prompt":310,"top-quarter":200,"top-half":320,"lora":480,"full":560,"new-head-full":560,"full-layer-rates":560,"from-scratch":560}
P={"new-head":2313,"soft-prompt":4096,"top-quarter":1580032,"top-half":3159552,"lora":524288,"full":6973952,"new-head-full":6973952,"full-layer-rates":6973952,"from-scratch":6973952,"zero-shot":0,"in-context":0}
def met(u,m,n,s=.02): return records.metric(u,[m*(1+s*R.uniform(-1,1)) for _ in range(n)])
def case(keys,c,t,more,n=40): return Case(keys,c,0,"ok","","yes",{"time":records.metric("s",[t*(1+.01*R.random()) for _ in range(n)],[n//4]*4),**more},{},("cublas",))
cases=[]
for i,ex in enumerate((32,128,512,1223)):
    for c in E:
        more={"error":met("1",E[c][i],5,.05),"old_loss":met("nat",OLD[c],5 if c not in("new-head","soft-prompt","zero-shot","in-context") else 1,0),"trained_parameters":records.metric("1",[P[c]]),"answer_time":met("s",4e-4 if c!="in-context" else 1.5e-3,40)}
        if c in M: more|={"training_error":met("1",0.0 if c not in ("soft-prompt","new-head") else .2,5),"training_time":met("s",T[c]*200,4),"peak_memory":records.metric("B",[M[c]*2**20])}
        if c=="in-context": more["commonest_answer"]=met("1",.8,5)
        cases.append(case({"model":"main","examples":ex,"steps":200},c,T[c],more))
for c in E:
    k={"model":"main","examples":1223,"steps":1000}
    if c in("new-head","soft-prompt"): cases.append(case(k,c,T[c],{"error":met("1",E[c][3]*.9,5),"training_error":met("1",.1,5),"old_loss":met("nat",OLD[c],1,0),"trained_parameters":records.metric("1",[P[c]]),"training_time":met("s",T[c]*1000,4),"peak_memory":records.metric("B",[M[c]*2**20]),"answer_time":met("s",4e-4,40)}))
    else: cases.append(Case(k,c,0,"skipped","longer training is measured for new-head and soft-prompt, which have the fewest parameters",libraries=("cublas",)))
def write(name,cases): records.write(Record(name,"nvidia-h200",HARNESS_VERSION,digest.benchmark_digest(name),(run,),tuple(cases)),out/f"{name}.json")
write("transfer-learning",cases)
import math
B={"new-head":1e-2,"soft-prompt":3e-2,"top-quarter":1e-3,"top-half":1e-3,"lora":1e-3,"full":3e-4,"full-layer-rates":1e-3,"from-scratch":1e-3}
cases=[]
for r in (1e-4,3e-4,1e-3,3e-3,1e-2,3e-2,1e-1):
    for c in B:
        v=min(.85,E[c][2]+.1*abs(math.log10(r/B[c]))**1.5)
        cases.append(case({"model":"main","examples":512,"steps":200,"learning_rate":r},c,T[c],{"validation_error":met("1",v,2),"training_error":met("1",.1,2)},20))
write("transfer-learning-rate",cases)
S={"new-head":.0035,"soft-prompt":.0085,"top-quarter":.0055,"top-half":.0075,"lora":.0098,"full":.0118}
MS={"new-head":.55,"soft-prompt":2.0,"top-quarter":1.3,"top-half":1.9,"lora":3.0,"full":4.1}
PS={"new-head":6921,"soft-prompt":12288,"top-quarter":21265152,"top-half":42528768,"lora":3538944,"full":124439808}
write("transfer-step",[case({"model":"gpt2-small","batch":32,"seq_len":128},c,S[c],{"trained_parameters":records.metric("1",[PS[c]]),"peak_memory":records.metric("B",[MS[c]*2**30])}) for c in S])
