"""Joins of two keyed streams: what a user declares, and the rows of both sides in one schema."""
