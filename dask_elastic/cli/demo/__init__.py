"""The demonstration: replays a year of New York's flights in under two minutes, while cores follow the load."""
