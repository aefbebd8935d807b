"""How executors of the resource-centric paradigm exchange key groups."""
