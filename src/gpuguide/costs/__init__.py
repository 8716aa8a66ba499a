"""What an operation or a training run must cost: arithmetic, bytes and time, counted without PyTorch."""
