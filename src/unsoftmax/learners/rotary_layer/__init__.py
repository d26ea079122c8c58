"""A whole attention layer whose scores turn with distance, from vector answers."""
