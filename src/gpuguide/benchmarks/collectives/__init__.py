"""Collectives by the size of the message, gradients averaged over GPUs, and a training step on several of them."""
