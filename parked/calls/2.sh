# The records of pages 35 and 36, about 490 s. Two GPUs. Needs .gpu/whl.
. parked/calls/common.sh
( export CUDA_VISIBLE_DEVICES=0; HALF=0/2 timeout 150 python3 parked/lora_warm_up.py lora-step lora-inference > /tmp/log/warm-0.log 2>&1 ) & W0=$!
( export CUDA_VISIBLE_DEVICES=1; HALF=1/2 timeout 150 python3 parked/lora_warm_up.py lora-step lora-inference > /tmp/log/warm-1.log 2>&1 ) & W1=$!
( export CUDA_VISIBLE_DEVICES=1; bench transfer-learning-rate ) & R=$!  # of which no time is shown
wait $W0 $W1; say warm; tail -qn 1 /tmp/log/warm-?.log; grep -hv "rc=0 $" /tmp/log/warm-?.log | cut -c1-300
( export CUDA_VISIBLE_DEVICES=0; bench lora-step lora-inference ) & A=$!
( export CUDA_VISIBLE_DEVICES=1; wait_for() { while kill -0 "$1" 2>/dev/null; do sleep .2; done; }; wait_for $R; bench lora-task transfer-learning transfer-step ) & B=$!
wait $A $B; finish
