"""Benchmarks that are declared, and stand on no page yet: their records come with the page."""

BENCHMARKS = {
    "31-training-memory": {
        "memory-levers",
        "memory-prediction",
        "memory-timeline",
        "optimizer-step",
        "sharded-memory",
    },
    "33-training-speed": {"training-ladder", "training-beyond", "batch-speed", "batch-loading", "data-parallel"},
    "50-collectives": {"collectives", "gradient-sum", "two-gpu-scaling"},
}
WITHOUT_PAGE = set[str]().union(*BENCHMARKS.values())
