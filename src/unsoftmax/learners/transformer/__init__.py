"""The one-layer Transformer (Section 4.1): a network first, then the attention before it."""
