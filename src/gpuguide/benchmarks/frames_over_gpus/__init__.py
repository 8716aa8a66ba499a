"""Benchmarks of frames over several GPUs: exchanges of rows, and whole queries."""
