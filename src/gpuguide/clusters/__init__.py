"""Training on a cluster: batch scripts for Slurm, who is which rank, and a small Slurm on one machine to try them."""
