"""Theorem B.1 and the bisection beyond it: a head from labels alone."""
