"""Instances of sources on this node: threads that read and send their rows, positions, barriers."""
