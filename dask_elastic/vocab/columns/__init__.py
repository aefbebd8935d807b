"""What the types of columns permit."""
