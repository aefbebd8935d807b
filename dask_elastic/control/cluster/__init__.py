"""How many workers the running jobs need."""
