"""Homes of executors that move while a simulated job runs."""
