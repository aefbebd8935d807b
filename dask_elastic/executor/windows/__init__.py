"""Windowed computes in a task: which instances a row is in, their partial aggregates, and results when they close."""
