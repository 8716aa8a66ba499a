"""A page as its author writes it: its front matter, its cells, and the small parts that it is made of."""
