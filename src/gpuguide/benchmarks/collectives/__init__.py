"""Collectives by the size of the message, gradients added up over two GPUs, and a training step on two of them."""
