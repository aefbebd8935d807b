"""Checkpoints on the dashboard: a table on the page, and Prometheus metrics."""
