# Correctness, trials, and the learning rates of transfer learning, about 310 s. Two GPUs. Needs .gpu/whl.
. parked/calls/common.sh
( export CUDA_VISIBLE_DEVICES=1
  pt tests/lora/test_thin.py > /tmp/log/t-thin.log 2>&1 & pt tests/lora --deselect tests/lora/test_thin.py > /tmp/log/t-lora.log 2>&1 &
  pt tests/finetuning > /tmp/log/t-finetuning.log 2>&1 & pt tests/transfer tests/benchmarks/transfer > /tmp/log/t-transfer.log 2>&1 &
  pt tests/benchmarks/lora > /tmp/log/t-benchmarks.log 2>&1 & pt tests/cross_entropy tests/benchmarks/cross_entropy > /tmp/log/t-loss.log 2>&1 & wait
  say tests; for f in /tmp/log/t-*.log; do echo "$f: $(tail -1 "$f")"; grep -E "^(FAILED|ERROR)" "$f" | cut -c1-300; done
  bench transfer-learning-rate ) & A=$!  # set LEARNING_RATES of transfer/scores.py by it, before 3.sh
( export CUDA_VISIBLE_DEVICES=0
  V="ours ours+nothin chunked full peft ours+llama ours+llama+nothin"
  export COUNT=$(echo $V | wc -w) WAIT=95
  for v in $V; do TORCHINDUCTOR_CACHE_DIR=/tmp/ind/$v OMP_NUM_THREADS=2 TORCHINDUCTOR_COMPILE_THREADS=4 timeout 170 python3 parked/variants.py $v > /tmp/log/v-$v.log 2>&1 & done; wait
  say variants; for v in $V; do grep " ms, compiled" /tmp/log/v-$v.log || tail -n 3 /tmp/log/v-$v.log; done
  timeout 90 python3 parked/thin_tune.py 16 64 > /tmp/log/tune.log 2>&1; say tune; grep -E "BEST|torch.mm" /tmp/log/tune.log | cut -c1-130
  timeout 110 python3 parked/compiled_gradients.py 4 fp32,tf32,fp16,bf16 > /tmp/log/gradients.log 2>&1; say gradients; sort /tmp/log/gradients.log | cut -c1-330 | tail -34 ) & B=$!
wait $A $B; finish
