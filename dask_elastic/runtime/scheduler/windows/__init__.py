"""What the scheduler decides about windows while jobs run."""
