"""A whole attention sub-layer from vector answers."""
