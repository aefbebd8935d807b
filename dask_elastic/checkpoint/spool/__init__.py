"""The log of rows that a source has accepted and cannot read again."""
