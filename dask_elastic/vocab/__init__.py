"""The words that all other packages share: errors, locks, batches, control records, assignments."""
