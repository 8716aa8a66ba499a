"""Writing text with a model: what a step of decoding reads, and how to make that less."""
