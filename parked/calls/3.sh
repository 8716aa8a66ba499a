# Page 35, and what became stale or is missing elsewhere, about 450 s. Two GPUs. Needs .gpu/whl and .gpu/ao.
. parked/calls/common.sh
install /tmp/site-ao .gpu/ao/*.whl
( export CUDA_VISIBLE_DEVICES=0; bench transfer-learning-rate transfer-step linear-cross-entropy linear-cross-entropy-chunk linear-cross-entropy-profile ) & A=$!
( export CUDA_VISIBLE_DEVICES=1; bench transfer-learning; export PYTHONPATH=$PYTHONPATH:/tmp/site-ao; bench train-step-precision ) & B=$!
wait $A $B; finish
