# Page 35, what became stale, and the rest of lora-task, about 530 s. Two GPUs. Needs .gpu/whl, .gpu/ao and .gpu/lora-task.
. parked/calls/common.sh
install /tmp/site-ao .gpu/ao/*.whl
cp -r .gpu/lora-task /tmp/records/lora-task  # what was measured before; finished cases are kept
( export CUDA_VISIBLE_DEVICES=0; bench transfer-learning-rate transfer-step linear-cross-entropy linear-cross-entropy-chunk linear-cross-entropy-profile ) & A=$!
( export CUDA_VISIBLE_DEVICES=1; bench transfer-learning lora-task; export PYTHONPATH=$PYTHONPATH:/tmp/site-ao; bench train-step-precision ) & B=$!
wait $A $B; finish
