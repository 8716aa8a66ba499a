"""Benchmarks of training memory: by shape and variant, the price of each lever, optimizers, predictions, and shards."""
