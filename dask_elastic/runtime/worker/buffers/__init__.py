"""Bounded buffers of a worker, where rows wait for a reader: read-ahead, mailboxes, staged epochs, output."""
