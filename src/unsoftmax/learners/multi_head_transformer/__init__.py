"""Several heads before a ReLU network, from one number per query."""
