"""Benchmarks, one file or folder a topic."""
