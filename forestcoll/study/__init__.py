"""Compare, explain, degrade, predict: what plans and machines reach."""
