"""What is known of the calls to the storage of checkpoints."""
