"""Benchmarks of training memory: by shape and variant, methods that save memory, optimizers, predictions and shards."""
