"""Expiry of state that has a time to live: the times by which it expires, and its removal."""
