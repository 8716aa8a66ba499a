"""Benchmarks of frames larger than a GPU, or on several: whole queries on files, and exchanges of rows."""
