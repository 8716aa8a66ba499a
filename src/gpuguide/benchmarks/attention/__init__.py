"""Benchmarks of attention: speed, what each choice in a kernel is worth, and bytes by the GPU's own counters."""
