"""Benchmarks of number formats: matmuls, a linear layer in fp8, and whole steps of training."""
