"""How an executor changes its home: what the old home hands over, and what the new one holds until then."""
