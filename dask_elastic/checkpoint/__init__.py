"""Checkpoints on storage: files of state, manifests, and what is read back from them."""
