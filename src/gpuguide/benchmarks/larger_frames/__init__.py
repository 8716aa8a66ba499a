"""Benchmarks of frames larger than a GPU: whole queries on files."""
