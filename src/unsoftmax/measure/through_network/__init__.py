"""Logits read through a ReLU network that is already known (Section 4.1)."""
