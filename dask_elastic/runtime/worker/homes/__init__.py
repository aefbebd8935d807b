"""Homes of executors that move from or to this node."""
