"""Benchmarks of gradients: what a report on them takes, and how they depend on where a model has its norms."""
