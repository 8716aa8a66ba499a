"""Clusters: batch scripts for Slurm, and what becomes of them."""
