"""Forests, routes and groups: their files, and the checks of their proofs."""
