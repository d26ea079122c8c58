"""What is promised, as pure formulas: query counts, tolerances, information bounds, Hessians."""

from unsoftmax.theory.information import pair_hessian
from unsoftmax.theory.tolerances import error_for, tolerance_for, tolerances_for

__all__ = ["error_for", "pair_hessian", "tolerance_for", "tolerances_for"]
