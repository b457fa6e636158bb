"""The capacity graph, its symmetry, bounds on it, and the compiled loops over graphs."""
