"""Several groups at once on the same links: how these are split, and the forests of each group."""
