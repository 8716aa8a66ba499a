"""The head and the loss of a language model, forward and backward: its time, its memory, and where the time goes."""
