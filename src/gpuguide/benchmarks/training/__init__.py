"""Benchmarks of training steps: what each rung of the ladder gives, batches, loading, and several GPUs."""
