"""Training parts of a pretrained model: scores by the number of examples, costs, and learning rates."""
