"""Benchmarks of links: what they carry between host and GPU and between GPUs, and what that does to whole layers."""
