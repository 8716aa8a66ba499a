"""Benchmarks that are declared, and stand on no page yet: their records come with the page."""

BENCHMARKS = {
    "20-kernels-and-fusion": {"fused-sum", "add-layer-norm", "linear-gelu", "compile-gain", "compile-start"},
    "30-gradients": {"norm-placement", "gradient-report"},
    "31-training-memory": {
        "memory-levers",
        "memory-prediction",
        "memory-timeline",
        "optimizer-step",
        "sharded-memory",
    },
    "33-training-speed": {"training-ladder", "training-beyond", "batch-speed", "batch-loading", "data-parallel"},
    "42-more-than-one-gpu": {"exchange", "frame-queries"},
    "50-collectives": {"collectives", "gradient-sum", "gpu-scaling"},
}
WITHOUT_PAGE = set[str]().union(*BENCHMARKS.values())
