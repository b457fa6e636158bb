"""Symmetries of a capacity graph: which nodes are alike, found and checked link by link."""
