"""Fusion of stateful operators: what decides where their rows are computed, and which of them run in one task."""
