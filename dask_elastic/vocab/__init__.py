"""Values that all other packages share: identifiers, batches, messages, snapshots, plans, errors."""
