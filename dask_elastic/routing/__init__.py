"""Routing: key hashing, the first and second tier, and the split of a batch by destination."""
