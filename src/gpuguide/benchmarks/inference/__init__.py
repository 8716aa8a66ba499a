"""Benchmarks of inference: whole texts, their prefill, the two kinds of work in a decode step, and serving many."""
