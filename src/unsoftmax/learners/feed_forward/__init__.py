"""A whole feed-forward sub-layer from vector answers."""
