"""Benchmarks that are declared, and stand on no page yet: their records come with the page."""

BENCHMARKS = {
    "20-kernels-and-fusion": {"fused-sum", "add-layer-norm", "linear-gelu", "compile-gain", "compile-start"},
    "33-training-speed": {"training-ladder", "training-beyond", "batch-speed", "batch-loading", "data-parallel"},
    "50-collectives": {"collectives", "gradient-sum", "two-gpu-scaling"},
}
WITHOUT_PAGE = set[str]().union(*BENCHMARKS.values())
