"""Inference: a prompt goes in, and one token after another comes out."""
