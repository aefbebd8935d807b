"""Joins as tasks run them."""
