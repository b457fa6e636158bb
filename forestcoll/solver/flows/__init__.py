"""Concurrent flows: the linear programs of trees that share links, and their duals."""
