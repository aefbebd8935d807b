"""Clusters that grow and shrink with their jobs, as the scheduler sees them."""
