"""A block of hidden states: attention first, whatever its feed-forward part is."""
