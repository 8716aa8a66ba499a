"""Training with adapters, and using what came of it."""
