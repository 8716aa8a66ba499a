"""Benchmarks of number formats: products, a linear layer in fp8, and whole steps of training."""
