# The records of page 36, about 550 s. Two GPUs (H200: the Llama needs more memory than an H100 has). Needs .gpu/whl.
. parked/calls/common.sh
( export CUDA_VISIBLE_DEVICES=0; HALF=0/2 timeout 150 python3 parked/lora_warm_up.py lora-step lora-inference > /tmp/log/warm-0.log 2>&1 ) & W0=$!
( export CUDA_VISIBLE_DEVICES=1; HALF=1/2 timeout 150 python3 parked/lora_warm_up.py lora-step lora-inference > /tmp/log/warm-1.log 2>&1 ) & W1=$!
wait $W0 $W1; say warm; tail -qn 1 /tmp/log/warm-?.log; grep -hv "rc=0 $" /tmp/log/warm-?.log | cut -c1-300
find /tmp/ind -name "*.best_config" -delete  # chosen by timing while all compiled at once; chosen anew in milliseconds
( export CUDA_VISIBLE_DEVICES=0; bench lora-step lora-inference ) & A=$!
( export CUDA_VISIBLE_DEVICES=1; bench lora-task ) & B=$!
wait $A $B; finish
