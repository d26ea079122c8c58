"""Pure formulas: query counts, the precision of answers, the two-token identity, certificates."""
