"""Heads of targets that take ids of a vocabulary: whose table is known, and whose is not."""
