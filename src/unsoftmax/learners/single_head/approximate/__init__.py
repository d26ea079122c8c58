"""Theorem 6.1: a head from answers that are within ±τ."""
