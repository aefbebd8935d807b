"""One elastic executor without I/O; the files in the order in which a batch flows."""
