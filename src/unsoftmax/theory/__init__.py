"""What is promised, as pure formulas: query counts, tolerances, information bounds."""

from unsoftmax.theory.tolerances import error_for, tolerance_for, tolerances_for

__all__ = ["error_for", "tolerance_for", "tolerances_for"]
