"""What fusion, CUDA graphs and ``torch.compile`` gain."""
