"""The demonstration: replays a year of New York's flights in about a minute, while cores follow the load."""
