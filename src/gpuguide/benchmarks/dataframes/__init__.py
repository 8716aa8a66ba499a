"""Benchmarks of dataframes: operations, the copy to the GPU, groups, and how not to time any of it."""
