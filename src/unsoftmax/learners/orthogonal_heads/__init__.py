"""Heads in mutually orthogonal subspaces (Appendix C), its subspaces and its checks."""
