"""Theorem 5.1 as written: Gaussian measurements and the nuclear norm."""
