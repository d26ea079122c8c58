"""Several heads behind one scalar: one module per step."""
