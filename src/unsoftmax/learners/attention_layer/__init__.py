"""A whole attention layer from vector answers: all heads, their values and their scores."""
