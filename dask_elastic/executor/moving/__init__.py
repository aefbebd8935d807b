"""What the moves of one executor keep and know: partials that are handed over, divided shards, measurements."""
