"""The demonstration: a year of New York's flights in about a minute, with cores that follow the load by themselves."""
