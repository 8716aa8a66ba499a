"""Benchmarks that watch a GPU: while it does something known, and while a slow training step is mended."""
