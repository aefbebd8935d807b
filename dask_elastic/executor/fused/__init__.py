"""Computes that run in the tasks of another one, by direct calls."""
