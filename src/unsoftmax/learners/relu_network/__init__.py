"""Two-layer ReLU networks from their values: the role of A_FFN in section 4.1."""
