"""The state of several computes that run in one task."""
