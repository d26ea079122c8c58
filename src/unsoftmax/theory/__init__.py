"""Pure formulas: query counts, tolerances, precision, the two-token identity, certificates."""

from unsoftmax.theory.tolerances import error_for, tolerance_for

__all__ = ["error_for", "tolerance_for"]
